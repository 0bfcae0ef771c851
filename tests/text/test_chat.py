"""Chat templates: equal to transformers on the bundled model, safe, and clear about what they refuse."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import RequestError
from headway.text import ChatTemplate
from tests.text.support import bundled_tokenizer, transformers_tokenizer

CHATML = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content | trim }}"
    "{{ '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
USER = [{"role": "user", "content": "hi"}]


def render(source: str, messages: Sequence[Mapping[str, Any]] = USER, **kwargs: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(messages, **kwargs)


MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text(max_size=12)}),
    min_size=1,
    max_size=4,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(MESSAGES, st.booleans())
def test_bundled_template_renders_as_in_transformers(messages: list[dict[str, str]], prompt: bool) -> None:
    reference = transformers_tokenizer()
    ours = ChatTemplate.of(bundled_tokenizer()).render(messages, add_generation_prompt=prompt)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = reference.apply_chat_template(messages, add_generation_prompt=prompt, tokenize=False)
    assert ours == theirs


@pytest.mark.parametrize("template", [None, CHATML])
@pytest.mark.parametrize("last", ["The answer is", "The answer is ", "", "  spaced  "])
def test_a_final_message_left_open_ends_as_in_transformers(template: str | None, last: str) -> None:
    messages = [*USER, {"role": "assistant", "content": last}]
    source = template or bundled_tokenizer().chat_template
    ours = ChatTemplate(source).render(messages, add_generation_prompt=False, continue_final_message=True)
    theirs = transformers_tokenizer().apply_chat_template(
        messages, chat_template=source, continue_final_message=True, tokenize=False
    )
    assert ours == theirs


def test_prompt_of_the_bundled_model_encodes_its_markers_as_single_tokens() -> None:
    tokenizer = bundled_tokenizer()
    ids = tokenizer.encode(ChatTemplate.of(tokenizer).render(USER), add_special_tokens=False)
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(1) == 3
    assert ids.count(2) == 2


def test_developer_becomes_system_and_content_becomes_one_string() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "name": None},
    ]
    text = render("{% for m in messages %}[{{ m.role }}:{{ m.content }}:{{ 'name' in m }}]{% endfor %}", messages)
    assert text == "[system:be brief:False][user:one\ntwo:False][assistant::False]"


def test_arguments_of_earlier_tool_calls_arrive_as_objects_and_messages_stay_untouched() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2"},
    ]
    source = "{{ messages[0].tool_calls[0].function.arguments.x + 1 }}{{ messages[1].role }}"
    assert render(source, messages) == "2tool"
    assert call["function"] == {"name": "f", "arguments": '{"x": 1}'}
    assert messages[0]["content"] is None


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "empty"),
        ("hi", "must be a list"),
        ([5], r"messages\[0\] must be an object"),
        ([{"content": "hi"}], r"messages\[0\]\.role must be one of .* not None"),
        ([*USER, {"role": "wizard", "content": ""}], r"messages\[1\]\.role must be one of .*'wizard'"),
        ([{"role": "user", "content": 7}], r"messages\[0\]\.content must be a string"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\] must be .*'image_url'"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\]\.text must be a string"),
        ([{"role": "user", "content": ["plain"]}], r"content\[0\] must be a part"),
        ([{"role": "assistant", "tool_calls": {"id": 1}}], "tool_calls must be a list"),
        ([{"role": "assistant", "tool_calls": [{}]}], r"tool_calls\[0\]\.function must be an object"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            r"tool_calls\[0\]\.function\.arguments must be JSON",
        ),
    ],
)
def test_unacceptable_messages_name_the_place(messages: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        render("{{ messages }}", messages)
    assert caught.value.param == "messages"
    assert len(str(caught.value)) < 300


def test_a_model_without_a_template_points_to_completions() -> None:
    with pytest.raises(RequestError, match=r"no chat template.*/v1/completions"):
        ChatTemplate(None).render(USER)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "refuses the messages: Roles must alternate"),
        ("\n{% if %}", r"not valid Jinja \(line 2\)"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{{ messages.append(1) }}", "refuses"),
        ("{{ ''.__class__.__mro__ }}", "refuses"),
        ("{{ cycler.__init__.__globals__ }}", "refuses"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "OverflowError"),
        ("{{ raise_exception('x' * 5000) }}", "refuses the messages: x{300}$"),
    ],
)
def test_template_failures_are_the_request_error_with_the_reason(source: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        render(source)
    assert caught.value.param == "messages"


def test_environment_is_the_one_templates_are_written_for() -> None:
    source = (
        "{% for i in range(9) %}\n  {% if i == 2 %}{% break %}{% endif %}\n{{ i }}\n{% endfor %}\n"
        "{{ bos_token }}{{ eos_token }}|{{ {'k': 'é<'} | tojson }}|{{ strftime_now('%Y-%m') }}|"
        "{% generation %}said{% endgeneration %}|{{ tools is none }}|{{ flag }}"
    )
    template = ChatTemplate(source, "<s>", "</s>", now=lambda: datetime(2026, 11, 29))
    assert template.render(USER, flag=3) == '0\n1\n<s></s>|{"k": "é<"}|2026-11|said|True|3'


def test_tools_reach_the_template_as_lists() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert render("{{ tools | tojson(indent=1) | length }}|{{ tools[0].function.name }}", tools=tools).endswith("|f")
    assert render("{{ tools is none }}", tools=[]) == "True"


@pytest.mark.parametrize("name", ["messages", "raise_exception"])
def test_template_variables_of_the_engine_cannot_be_overridden(name: str) -> None:
    variables: dict[str, Any] = {name: []}
    with pytest.raises(RequestError, match=name) as caught:
        ChatTemplate("{{ messages }}").render(USER, **variables)
    assert caught.value.param == "chat_template_kwargs"


def test_continuing_and_opening_a_turn_exclude_each_other() -> None:
    with pytest.raises(RequestError) as caught:
        render(CHATML, continue_final_message=True)
    assert caught.value.param == "continue_final_message"


def test_a_template_that_drops_the_final_message_cannot_continue_it() -> None:
    with pytest.raises(RequestError, match="cannot be continued"):
        render("fixed", add_generation_prompt=False, continue_final_message=True)
