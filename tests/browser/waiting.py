"""Conditions that browser tests wait on: a page that is whole and still, the focus at an element."""

from typing import Any

# colours are between two themes, or an old value's are fading, as long as something moves; a spinner that never ends is not waited for
_STILL = """() => document.querySelector('.stApp[data-test-script-state=notRunning][data-test-connection-state=CONNECTED]')
  && !document.querySelector('[data-stale=true], [data-testid=stStatusWidget], [data-testid=stSpinner], [data-testid=stSkeleton]')
  && !document.getAnimations().some(a => a.playState === 'running' && a.effect && a.effect.getTiming().iterations !== Infinity)"""
# two pictures of the page apart, it still holds: what an answer starts begins in the picture after it
_TWICE = f"""async () => {{
  const still = {_STILL}, picture = () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  for (let n = 0; n < 5; n++) {{ if (!still()) return false; await picture(); }}
  return still();
}}"""
FOCUSED = "element => element === document.activeElement || element.contains(document.activeElement)"
MOST = 150  # elements that one may have to pass


def whole(page: Any) -> None:
    """Wait until the script has answered, every part has come, and nothing moves."""
    page.wait_for_function(_TWICE)


def address_and_token(page: Any) -> tuple[str, str]:
    """The address of a report that was just saved, and the token that deletes it; both are shown once."""
    shown = page.wait_for_function("""() => {
      const codes = [...document.querySelectorAll('[data-testid=stPopoverBody] [data-testid=stCode]')].map(e => e.innerText.trim());
      const at = codes.findIndex(text => text.includes('report?id='));
      return at >= 0 && codes[at + 1] ? [codes[at], codes[at + 1]] : null;
    }""").json_value()
    return shown[0], shown[1]


def tab_to(page: Any, element: Any) -> None:
    """Press Tab until the element has the focus."""
    for _ in range(MOST):
        if element.evaluate(FOCUSED):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{MOST} times Tab did not come to {element}")


def follow(page: Any, link: str, address: str) -> None:
    """Click a link of the page until it has led to an address: a click may meet a page that is drawing itself anew, as a reader's may, who clicks again."""
    from playwright.sync_api import TimeoutError as TookTooLong

    for last in (False, False, True):
        whole(page)
        if (there := page.get_by_role("link", name=link)).count():  # else the last click has led on, late
            there.click()
        try:
            page.wait_for_url(address, timeout=30_000 if last else 10_000)
        except TookTooLong:
            if last:
                raise
        else:
            return
