"""The tests go on where a browser stops drawing."""

import signal

from visit import DRAWN, drawing_processes, frames, new_context


def test_a_browser_that_stopped_drawing_goes_on(browser):
    """Must catch: a picture of the page as the only remedy, which waits for the same frame."""
    with new_context(browser) as context:
        page = context.new_page()
        page.set_content("<p>a page</p>")
        frames(page, DRAWN)
        assert drawing_processes()
        for process in drawing_processes():
            process.send_signal(signal.SIGSTOP)
        frames(page, DRAWN.replace("20000", "4000"))
        page.screenshot()
