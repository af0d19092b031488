"""Work goes on in a program's other threads after its main thread has ended, when executors take no more of it."""

from __future__ import annotations

import subprocess
import sys

_ENDED = """
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from imagestore.util.executors import begin, submit_or_run, work_off

def work():
    with ThreadPoolExecutor(1) as known, ThreadPoolExecutor(1) as asked:
        known.submit(int).result()
        is_over = False
        while not is_over:
            try:
                asked.submit(int).result()
            except RuntimeError:
                is_over = True
        done = []
        work_off(asked, 2, deque([1, 2]), done.append)
        begin(asked, lambda: done.append(3)).result()
        submit_or_run(known, lambda: done.append(4)).result()
        print(sorted(done))

threading.Thread(target=work).start()
"""


def test_work_of_a_thread_that_outlives_the_main_one_is_done() -> None:
    done = subprocess.run([sys.executable, "-c", _ENDED], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[1, 2, 3, 4]\n", "")
