"""Views of the monitor's results. All take a `Moment`.

figures, moment            the model: numbers of an interval, history of a job, both with its verdict
escape, wording             text of others made harmless; a verdict as sentences
screen, layout, lines       for people: a live screen, plain lines
html_report                 for people: one HTML page without scripts and network, with the screen's lines
json_view, prometheus       for programs
"""
