"""Chat templates that write calls of tools as those of known models do; written for tests.

Each renders `calls`, a list of `{name, arguments}`, and names the markers that a format is known
by. Source of the formats: the chat templates of the models that are named.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jinja2

# Qwen2.5, Qwen3, Hermes 2 and 3, Granite 4.
HERMES = """\
{%- if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>{% endif -%}
{%- for call in calls -%}
{{ "" if loop.first else "\\n" }}<tool_call>
{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}
</tool_call>
{%- endfor -%}
"""
# Qwen3-Coder, Qwen3-Next.
QWEN_CODER = """\
{%- if tools %}<tools></tools>{% endif -%}
{%- for call in calls -%}
{{ "" if loop.first else "\\n" }}<tool_call>
<function={{ call.name }}>
{% for key, value in call.arguments.items() -%}
<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor -%}
</function>
</tool_call>
{%- endfor -%}
"""
# Llama 3.1, 3.2 and 3.3.
LLAMA = """\
{%- if tools %}Respond in the format {"name": function name, "parameters": dictionary of \
argument name and its value}.{% if builtin_tools %}<|python_tag|>{% endif %}{% endif -%}
{%- for call in calls -%}
{{ "" if loop.first else "; " -}}
{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}
{%- endfor -%}
"""
# Mistral 7B v0.3, Nemo.
MISTRAL_LIST = """\
{%- if tools %}[AVAILABLE_TOOLS] [][/AVAILABLE_TOOLS]{% endif -%}
[TOOL_CALLS] [
{%- for call in calls -%}
{{ "" if loop.first else ", " -}}
{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}, "id": "abcdefghi"}
{%- endfor -%}
]"""
# Mistral Small 3.2, Magistral, Devstral.
MISTRAL_NAMED = """\
{%- if tools %}[AVAILABLE_TOOLS][][/AVAILABLE_TOOLS]{% endif -%}
{%- for call in calls -%}
[TOOL_CALLS]{{ call.name }}[ARGS]{{ call.arguments | tojson }}
{%- endfor -%}
"""
# DeepSeek V3 and R1.
DEEPSEEK_FENCED = """\
{%- if tools %}{% endif -%}
<\uff5ctool\u2581calls\u2581begin\uff5c>
{%- for call in calls -%}
{{ "" if loop.first else "\\n" -}}
<\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>{{ call.name }}
```json
{{ call.arguments | tojson }}
```<\uff5ctool\u2581call\u2581end\uff5c>
{%- endfor -%}
<\uff5ctool\u2581calls\u2581end\uff5c>"""
# DeepSeek V3.1.
DEEPSEEK_PLAIN = """\
{%- if tools %}{% endif -%}
<\uff5ctool\u2581calls\u2581begin\uff5c>
{%- for call in calls -%}
<\uff5ctool\u2581call\u2581begin\uff5c>{{ call.name }}<\uff5ctool\u2581sep\uff5c>
{{- call.arguments | tojson -}}
<\uff5ctool\u2581call\u2581end\uff5c>
{%- endfor -%}
<\uff5ctool\u2581calls\u2581end\uff5c>"""
# Phi-4-mini; Granite 3 leaves the closing marker away.
CALL_LIST = """\
{%- if tools %}<|tool|>[]<|/tool|>{% endif -%}
<|tool_call|>[
{%- for call in calls -%}
{{ "" if loop.first else ", " -}}
{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}
{%- endfor -%}
]<|/tool_call|>"""
TEMPLATES = {
    "hermes": HERMES,
    "qwen-coder": QWEN_CODER,
    "llama": LLAMA,
    "mistral": MISTRAL_LIST,
    "mistral, named": MISTRAL_NAMED,
    "deepseek": DEEPSEEK_FENCED,
    "deepseek, plain": DEEPSEEK_PLAIN,
    "tool-call-list": CALL_LIST,
    "tool-call-list, open": CALL_LIST.replace("<|/tool_call|>", ""),
}


def rendered(template: str, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """Return what a model that keeps to a template writes for calls."""
    environment = jinja2.Environment(autoescape=False)
    # As transformers has it: the filter of jinja2 itself escapes for HTML.
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    named = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return environment.from_string(template).render(calls=named, tools=None)
