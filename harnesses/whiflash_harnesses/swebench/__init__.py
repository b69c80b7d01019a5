"""SWE-bench: run an agent on tasks, judge its patches with swebench's own grader, report.

``tasks`` → ``testbed`` → ``run`` writes ``preds.json`` and trajectories; ``evaluate`` judges them in a
sandbox; ``figures`` sums up, ``report`` shows. All of it lives in one output folder, see ``folder``.
"""
