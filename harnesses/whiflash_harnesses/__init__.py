"""Agent harnesses on LangChain chat models: SWE-bench now, τ-bench and replay to come.

``environments`` runs commands, ``loop`` is the agent loop, ``swebench`` ties both to tasks, grading, reports.
"""
