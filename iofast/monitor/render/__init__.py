"""Views of the monitor's results. All take a `Moment`.

moment                      the model: numbers of an interval, a verdict, the history of a job
wording                     a verdict as sentences; text of others made harmless
screen, layout              for people: a live screen
printed                     plain lines, JSON for programs, and one HTML page without scripts and network
prometheus                  for programs
"""
