"""Child processes end with their parent."""

import os
import signal
import threading
import time

import psutil
import pytest
from other_processes import ended

from nmt_cli.system import child_processes
from nmt_cli.system.child_processes import end_with_parent


@pytest.mark.parametrize(("thread_lasts", "macos"), [(True, False), (False, False), (True, True)])
def test_a_child_ends_with_its_parent_but_outlives_the_thread_that_started_it(
    monkeypatch: pytest.MonkeyPatch, thread_lasts: bool, macos: bool
) -> None:
    if macos:
        monkeypatch.setattr(child_processes, "kill_with_parent_thread", lambda: False)
    receiver, sender = os.pipe()
    wait, done = os.pipe()
    parent = os.fork()
    if not parent:

        def start() -> None:
            parent = os.getpid()
            if not os.fork():
                end_with_parent(parent, thread_lasts=thread_lasts)
                os.write(sender, b"%d" % os.getpid())
                os.write(done, b"x")
                time.sleep(60)
                os._exit(1)
            os.read(wait, 1)  # the thread ends only after the child has called end_with_parent

        thread = threading.Thread(target=start)
        if thread_lasts:
            start()
        else:
            thread.start()
            thread.join()
        time.sleep(60)
    child = int(os.read(receiver, 20))
    for file in (receiver, sender, wait, done):
        os.close(file)
    time.sleep(0.3)
    before = psutil.Process(child).status()
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert before != psutil.STATUS_ZOMBIE
    assert ended(child)
