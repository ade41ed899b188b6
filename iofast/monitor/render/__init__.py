"""Views of the monitor's results. All take a `Moment`.

moment                      the model: numbers of an interval, a verdict, the history of a job
wording                     a verdict as sentences; text of others made harmless
screen, layout              for people: a live screen
html_report                 for people: one HTML page without scripts and network, with the screen's lines
printed                     plain lines, and JSON for programs
prometheus                  for programs
"""
