"""The guided flow with widgets, for a notebook: what was found, the question that matters next, ticked changes and their sum.

Needs ipywidgets (``pip install 'training-memory-advisor[notebook]'``). It runs in the notebook's own process: no tunnel, nothing leaves it.
"""

from __future__ import annotations

from html import escape
from typing import Any

from msgspec.structs import replace

from advisor.accepting import Items, items_of
from advisor.diagnosis import diagnose_reading
from advisor.notebook import html_of
from advisor.planner.together import apply_together
from advisor.reading import Reading, read
from advisor.render import words
from advisor.render.changing import cost
from advisor.report import Report
from advisor.stating import StatingError, state, validated
from advisor.units import show

NOT_KNOWN = "I don't know"


class Guide:
    """One diagnosis that is talked through. ``box`` is the widget; ``report`` the answer as it stands."""

    def __init__(self, reading: Reading) -> None:
        """Diagnose and draw.

        Raises:
            ImportError: ipywidgets is not installed.
        """
        try:
            import ipywidgets
        except ImportError as error:
            how = "pip install 'training-memory-advisor[notebook]'"
            raise ImportError(f"advisor.guide draws widgets, and {error.name or 'ipywidgets'} is not installed here: {how}", name=error.name) from None

        self._w: Any = ipywidgets
        self.box: Any = ipywidgets.VBox()
        self._left_open: set[str] = set()
        self._answer(reading)

    def _answer(self, reading: Reading) -> None:
        self.reading, self.report = reading, diagnose_reading(reading)
        self._draw()

    def _draw(self) -> None:
        plan = self.report.plan
        self.ticks = {
            s.technique: self._w.Checkbox(value=n < len(plan.steps), description=s.title, indent=False, layout={"width": "auto"})
            for n, s in enumerate((*plan.steps, *plan.alternatives))
            if s.estimated
        }
        self.sum: Any = self._w.HTML()
        for box in self.ticks.values():
            box.observe(lambda _: self._add_up(), "value")
        self._add_up()
        shown = [self._w.HTML(html_of(self.report)), *self._question(), *self._seen()]
        self.box.children = (*shown, self._w.HTML("<b>Tick changes</b>"), *self.ticks.values(), self.sum) if self.ticks else tuple(shown)

    def _question(self) -> list[Any]:
        asked = self.report.next_question
        if asked is None or asked.text in self._left_open or asked.answers:
            return []
        if not asked.options:
            field = self._w.Text(placeholder=NOT_KNOWN, description=words.field(asked.field), continuous_update=False)
            field.observe(lambda change: self.state(asked.field, change["new"]), "value")
        else:
            options = [(NOT_KNOWN, None), *((words.value(v), v) for v in asked.options)]
            field = self._w.Dropdown(options=options, description=words.field(asked.field))
            field.observe(lambda change: self.state(asked.field, change["new"]), "value")
        skip = self._w.Button(description=NOT_KNOWN)
        skip.on_click(lambda _: self.leave_open(asked.text))
        return [self._w.HTML(f"<b>{escape(asked.text)}</b>"), self._w.HBox([field, skip])]

    def _seen(self) -> list[Any]:
        asked = self.report.next_question
        offered = [*(asked.answers if asked is not None and asked.text not in self._left_open else ()), *self.report.follow_ups]
        buttons = []
        for one in offered:
            button = self._w.Button(description=one.says, layout={"width": "auto"})
            button.on_click(lambda _, mark=one.mark: self.saw(mark))
            buttons.append(button)
        return [self._w.HTML("<b>Tried something? Say what happened</b>"), *buttons] if buttons else []

    def state(self, path: str, value: Any) -> None:
        """Answer the question, or put an assumption right; nothing happens where the value is none of the field's."""
        if value in (None, "", NOT_KNOWN):
            return
        try:
            job, evidence = state(self.reading.job, self.reading.evidence, {path: validated(path, value)}, "this notebook")
        except StatingError as error:
            self.sum.value = f"<i>{escape(str(error))}</i>"
            return
        self._answer(Reading(job, evidence))

    def saw(self, mark: str) -> None:
        """Tell what a second try showed."""
        evidence = self.reading.evidence
        self._answer(Reading(self.reading.job, replace(evidence, marks=(*evidence.marks, mark))))

    def leave_open(self, text: str) -> None:
        """I don't know."""
        self._left_open.add(text)
        self._draw()

    def _add_up(self) -> None:
        if self.report.run is None or self.report.ledger is None:
            return
        chosen = [name for name, box in self.ticks.items() if box.value]
        together = apply_together(self.report.run, chosen, self.report.plan)
        if together is None:
            return
        price = "" if together.step_time_ratio is None else f"; {cost(together.step_time_ratio)}"
        before, after = self.report.ledger.peak().bytes, together.ledger.peak().bytes
        self.sum.value = f"With {len(chosen)} ticked: {show(before)} → <b>{show(after)}</b> allocated{price}."

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.box)  # type: ignore[no-untyped-call]  # IPython ships no types for it


def guide(items: Items | Reading | Report) -> Guide:
    """Talk a diagnosis through: from texts or files (as :func:`advisor.diagnose` takes them), a reading, or nothing but what a report was made of.

    Raises:
        TypeError: it is none of them.
        ValueError: a report without a run.
        ImportError: ipywidgets is not installed; the message says how to get it.
    """
    if isinstance(items, Reading):
        return Guide(items)
    if isinstance(items, Report):
        if items.run is None:
            raise ValueError("this report has no run to talk about: give the texts instead")
        return Guide(Reading(items.run.stated, items.evidence))
    return Guide(read(items_of(items, "guide")))
