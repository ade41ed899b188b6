"""Views of the monitor's results. All take a `Moment`.

figures, history, moment    the model: numbers of an interval, history of a job, both with its verdict
escape, wording             text of others made harmless; a verdict as sentences
screen, layout, lines       for people: a live screen, plain lines
html_report, chart, style   for people: one HTML page without scripts and network
json_view, prometheus       for programs
"""
