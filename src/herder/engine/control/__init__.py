"""The control loop that every controller of the process runs on, in the API server, the runtime and the Job runner.

    informer or store ──► handler adds keys ──► WorkQueue ──► workers ──► reconcile(key)
                                                   ▲                          │
                                                   └── retry with back-off ◄──┘ failure

`ControlLoop` owns a queue and its workers. `Informer` keeps a cache of one kind current over HTTP; `StoreInformer`
reports the changes of a store in the same process. `supervised` keeps long-running tasks alive.
"""
