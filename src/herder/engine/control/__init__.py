"""Control loop machinery shared by the API server's controllers, the manager and the Job runner.

    informer or store ──► event handler adds keys ──► WorkQueue ──► workers ──► reconcile(key)
                                                         ▲                          │
                                                         └── retry with back-off ◄──┘ failure

`ControlLoop` owns a queue and its workers. `Informer` keeps a cache of one kind current over HTTP; `StoreInformer`
reports the changes of a store in the same process. `supervised` restarts long-running tasks that fail.
"""
