"""A thread that does what it is given in order, and posts what comes of it."""

import queue
import threading
from typing import Callable, Optional

from herder.agent.events import Event

Job = Callable[[], Optional[Event]]


class Lane:
    def __init__(self, name: str, post: Callable[[Event], None]) -> None:
        self._jobs: queue.Queue[Job] = queue.Queue()
        self._post = post
        self._name = name
        self._begun = False

    def do(self, job: Job) -> None:
        """The thread begins with the first job."""
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            event = self._jobs.get()()
            if event is not None:
                self._post(event)
