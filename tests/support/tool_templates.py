"""Chat templates of our own that show each family of calls, in the words that tell them apart."""

from __future__ import annotations


_HEAD = "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}"
_ONCE = (
    "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call a message') }}{% endif %}"
    "{% for c in m.tool_calls %}"
)
_IDS = (
    "{% if m.role == 'tool' and m.tool_call_id | length != 9 %}"
    "{{ raise_exception('ids have nine characters') }}{% endif %}"
)


def _template(before: str, calls: str, after: str) -> str:
    """A template: what is around a message, and how its calls are written."""
    answer = before.replace("m.role", "'assistant'")
    return (
        f"{_HEAD}{{% for m in messages %}}{_IDS}{before}{{{{ m.content }}}}"
        f"{{% if 'tool_calls' in m %}}{calls}{{% endif %}}{after}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{answer}{{% endif %}}"
    )


_CHATML = ("{{ '<|im_start|>' + m.role + '\n' }}", "{{ '<|im_end|>\n' }}")
_ARGUMENTS = "{{ c.function.arguments | tojson }}"
TEMPLATES = {
    "hermes": _template(
        _CHATML[0],
        "{% for c in m.tool_calls %}"
        '\n<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
        f"{_ARGUMENTS}}}\n</tool_call>{{% endfor %}}",
        _CHATML[1],
    ),
    "mistral": _template(
        "[INST]",
        "[TOOL_CALLS][{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}]",
        "</s>",
    ),
    "mistral-args": _template(
        "[INST]",
        "{% for c in m.tool_calls %}"
        f"[TOOL_CALLS]{{{{ c.function.name }}}}[ARGS]{_ARGUMENTS}{{% endfor %}}",
        "</s>",
    ),
    "llama": _template(
        "<|start_header_id|>{{ m.role }}",
        f'{_ONCE}{{"name": "{{{{ c.function.name }}}}", "parameters": {_ARGUMENTS}}}{{% endfor %}}',
        "<|eot_id|>",
    ),
}
