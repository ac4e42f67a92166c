"""``python -m advisor``: the command line."""

from advisor.cli import main

raise SystemExit(main())
