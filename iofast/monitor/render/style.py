"""The style sheet of the report: light and dark by the reader's setting, and on paper."""

from __future__ import annotations

CSS = """\
:root{color-scheme:light dark;--ink:#1c2126;--soft:#5c6670;--page:#fff;--card:#f5f7f8;--line:#d9dfe3;
--none:#2c8a4b;--notice:#2a7f9e;--bound:#b7791f;--severe:#c0392b;--abstained:#98a2ab;--area:#4a90b8}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8eb;--soft:#9aa5ae;--page:#14181b;--card:#1d2226;--line:#343c42;
--none:#4db873;--notice:#55b0d0;--bound:#dca043;--severe:#e8685a;--abstained:#6b757d;--area:#5aa3cc}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:860px;padding:24px 20px 60px;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:20px;margin:0}h2{font-size:15px;margin:28px 0 8px}
header p,.soft{color:var(--soft);margin:2px 0}
section.job{margin-top:32px;border-top:1px solid var(--line);padding-top:20px}
code{font:13px/1.45 ui-monospace,monospace;overflow-wrap:anywhere}
.command{display:block;color:var(--soft)}
.verdict{background:var(--card);border-left:6px solid var(--tone);border-radius:4px;padding:14px 18px;margin:12px 0}
.verdict b{font-size:22px;color:var(--tone)}.verdict .cause{font-size:17px;margin-left:10px}
.verdict p{margin:4px 0}
.none{--tone:var(--none)}.notice{--tone:var(--notice)}.bound{--tone:var(--bound)}
.severe{--tone:var(--severe)}.abstained{--tone:var(--abstained)}
.range{position:relative;height:10px;background:var(--line);border-radius:5px;margin:8px 0 2px;max-width:420px}
.range i{position:absolute;top:0;bottom:0;border-radius:5px;background:var(--tone);min-width:3px}
.chart{margin:10px 0}.chart div{display:flex;justify-content:space-between}
.chart span{font-size:13px}.chart .soft{font-variant-numeric:tabular-nums}
svg{display:block;width:100%;height:auto}svg text{font:10px system-ui,sans-serif;fill:var(--soft)}
.base{stroke:var(--soft);stroke-width:.6}.tick{stroke:var(--line);stroke-width:.6}
polygon{fill:var(--area);fill-opacity:.4}
table{border-collapse:collapse;width:100%;font-size:14px}
td{padding:4px 12px 4px 0;border-bottom:1px solid var(--line);vertical-align:top;font-variant-numeric:tabular-nums}
ol{padding-left:22px}li{margin-bottom:12px}li code{display:block;background:var(--card);padding:6px 10px;
border-radius:4px;margin:4px 0;white-space:pre-wrap}
@media print{:root{color-scheme:light}body{max-width:none;padding:0;font-size:11pt}
.verdict,.chart,li,tr{break-inside:avoid}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
