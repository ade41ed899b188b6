"""Views of what the monitor found. Each takes `Moment`s (moment.py) and knows nothing of how they came to be.

escape         text of watched processes and datasets, made harmless for a terminal, a page, a label, a cell
figures        one interval's numbers, the same in every view
history        what a job did, in bounded memory: timelines that coarsen, verdicts that lasted
moment         a job as it stands now, and what a view is
wording        a verdict as sentences
screen, lines  people: a live screen, plain lines
json_view, csv_view, prometheus, scalars   programs: JSON, CSV, Prometheus, TensorBoard and W&B
report, chart  one HTML page that needs nothing else
"""
