"""The subcommands, one file each: ``arguments(parser)`` declares, ``run(args)`` does it and returns the exit code."""
