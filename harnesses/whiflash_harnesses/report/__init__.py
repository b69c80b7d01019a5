"""Self-contained HTML: what every report page shares.

``page`` holds the frame (one file, no script, nothing loaded from elsewhere), ``charts`` draws inline SVG,
``tokens`` shows who drafted which token of an answer, ``colours`` gives every name the same colour everywhere.
What a report says is its own harness's business, see ``bench/html.py``.
"""
