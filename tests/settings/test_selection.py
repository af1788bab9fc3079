"""Which backend wins, what is said about the ones that lose, and what is refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcoord.settings.selection import (
    Flags,
    Role,
    Secret,
    Selection,
    SelectionError,
    choose,
    concerned_by_split_brain,
    guard,
    redact,
    role_of,
)

Env = dict[str, str]

HOME = {"HOME": "/h"}
URL = {"AGENT_COORD_API_URL": "https://u.example"}
ROOT = {"AGENT_COORD_STATE_ROOT": "/root"}
REPO = {"AGENT_COORD_BACKEND": "o/state"}
TOKEN = {"AGENT_COORD_API_TOKEN": "t0ken"}
IMPLICIT_NOTICE = "notice: local mode — single-machine only; state root: /h/.local/state/agent-coordination"
READING = (Role.READ, Role.DOCTOR)


def chosen(
    flags: Flags | None = None,
    env: Env | None = None,
    saved: Env | None = None,
    role: Role = Role.WRITE,
    install_root: str | None = None,
) -> Selection:
    return choose(role, flags or Flags(), HOME | (env or {}), saved or {}, install_root=install_root)


def refused(
    flags: Flags | None = None,
    env: Env | None = None,
    saved: Env | None = None,
    role: Role = Role.WRITE,
) -> SelectionError:
    with pytest.raises(SelectionError) as raised:
        choose(role, flags or Flags(), env if env is not None else HOME, saved or {})
    return raised.value


def address(selection: Selection) -> str | None:
    """The one place a selection leads to."""
    return {"local": selection.root, "http": selection.url, "github": selection.repo}[selection.kind]


# Precedence and conflicts

S = Flags(state_root="/f")
A = Flags(api_url="https://f.example")
B = Flags(backend="f/state")
SA = Flags(state_root="/f", api_url="https://f.example")
SB = Flags(state_root="/f", backend="f/state")
AB = Flags(api_url="https://f.example", backend="f/state")
SAB = Flags(state_root="/f", api_url="https://f.example", backend="f/state")

OVER_FLAG_URL = "warning: --api-url and --state-root are both set; using the local backend."
OVER_FLAG_REPO = "warning: --backend and --state-root are both set; using the local backend."
ROOT_OVER_URL = "warning: AGENT_COORD_API_URL and --state-root are both set; using the local backend."
ROOT_OVER_REPO = "warning: AGENT_COORD_BACKEND and --state-root are both set; using the local backend."
URL_OVER_FLAG_REPO = "warning: --backend and --api-url are both set; using the HTTP backend."
URL_OVER_ROOT = (
    "warning: --api-url and AGENT_COORD_STATE_ROOT are both set; using the HTTP backend. "
    "Pass --state-root to force local."
)
URL_OVER_REPO = "warning: AGENT_COORD_BACKEND and --api-url are both set; using the HTTP backend."
REPO_OVER_URL = "warning: AGENT_COORD_API_URL and --backend are both set; using the legacy GitHub backend."
REPO_OVER_ROOT = "warning: AGENT_COORD_STATE_ROOT and --backend are both set; using the legacy GitHub backend."
BOTH_URL_ROOT = (
    "warning: AGENT_COORD_API_URL and AGENT_COORD_STATE_ROOT are both set; using the HTTP backend. "
    "Pass --state-root to force local."
)
BOTH_URL_REPO = (
    "warning: AGENT_COORD_API_URL and AGENT_COORD_BACKEND are both set; using the HTTP backend. "
    "Pass --backend to force the legacy GitHub backend."
)
BOTH_ROOT_REPO = (
    "warning: AGENT_COORD_STATE_ROOT and AGENT_COORD_BACKEND are both set; using the local backend. "
    "Pass --backend to force the legacy GitHub backend."
)

PRECEDENCE: list[tuple[Flags, Env, str, str | None]] = [
    (S, {}, "/f", None),
    (A, {}, "https://f.example", None),
    (B, {}, "f/state", None),
    (SA, {}, "/f", OVER_FLAG_URL),
    (SB, {}, "/f", OVER_FLAG_REPO),
    (AB, {}, "https://f.example", URL_OVER_FLAG_REPO),
    (SAB, {}, "/f", OVER_FLAG_URL),
    (S, ROOT, "/f", None),
    (S, URL, "/f", ROOT_OVER_URL),
    (S, REPO, "/f", ROOT_OVER_REPO),
    (S, URL | REPO, "/f", ROOT_OVER_URL),
    (S, URL | ROOT | REPO, "/f", ROOT_OVER_URL),
    (A, URL, "https://f.example", None),
    (A, ROOT, "https://f.example", URL_OVER_ROOT),
    (A, REPO, "https://f.example", URL_OVER_REPO),
    (A, ROOT | REPO, "https://f.example", URL_OVER_ROOT),
    (B, REPO, "f/state", None),
    (B, URL, "f/state", REPO_OVER_URL),
    (B, ROOT, "f/state", REPO_OVER_ROOT),
    (B, URL | ROOT, "f/state", REPO_OVER_URL),
    (SA, URL | ROOT | REPO, "/f", OVER_FLAG_URL),
    (AB, URL | ROOT | REPO, "https://f.example", URL_OVER_FLAG_REPO),
    (Flags(), URL, "https://u.example", None),
    (Flags(), ROOT, "/root", None),
    (Flags(), REPO, "o/state", None),
    (Flags(), URL | ROOT, "https://u.example", BOTH_URL_ROOT),
    (Flags(), URL | REPO, "https://u.example", BOTH_URL_REPO),
    (Flags(), ROOT | REPO, "/root", BOTH_ROOT_REPO),
    (Flags(), URL | ROOT | REPO, "https://u.example", BOTH_URL_ROOT),
]


def conflicts(selection: Selection) -> list[str]:
    return [line for line in selection.said if "are both set" in line]


@pytest.mark.parametrize(("flags", "tier", "expected", "warning"), PRECEDENCE)
def test_a_process_selector_loses_to_flags_only(flags: Flags, tier: Env, expected: str, warning: str | None) -> None:
    selection = chosen(flags, tier | TOKEN)
    assert address(selection) == expected
    assert conflicts(selection) == ([] if warning is None else [warning])
    assert selection.backend_source == ("cli" if flags != Flags() else "process_env")
    assert selection.configured
    assert not selection.implicit


@pytest.mark.parametrize(("flags", "tier", "expected", "warning"), PRECEDENCE)
def test_a_saved_selector_conflicts_alike(flags: Flags, tier: Env, expected: str, warning: str | None) -> None:
    selection = chosen(flags, TOKEN, tier)
    assert address(selection) == expected
    assert conflicts(selection) == ([] if warning is None else [warning])
    assert selection.backend_source == ("cli" if flags != Flags() else "user_config")


@pytest.mark.parametrize(("flags", "tier", "expected", "warning"), PRECEDENCE)
def test_a_mere_report_says_nothing_and_needs_nothing(
    flags: Flags, tier: Env, expected: str, warning: str | None
) -> None:
    selection = choose(Role.SHOW, flags, tier, {})
    assert address(selection) == expected
    assert selection.said == ()
    assert selection.token is None


@pytest.mark.parametrize("process", [URL, ROOT, REPO])
@pytest.mark.parametrize("saved", [URL, ROOT, REPO, URL | ROOT | REPO])
def test_one_process_selector_hides_all_saved_ones(process: Env, saved: Env) -> None:
    selection = chosen(None, process | TOKEN, {key: f"/saved{value}" for key, value in saved.items()})
    assert address(selection) in process.values()
    assert conflicts(selection) == []


def test_blank_selectors_are_no_selectors() -> None:
    blank = {"AGENT_COORD_API_URL": " ", "AGENT_COORD_STATE_ROOT": "", "AGENT_COORD_BACKEND": "\t"}
    assert chosen(None, blank, ROOT).root == "/root"
    assert chosen(None, blank, blank).implicit


def test_what_is_selected_is_kept_verbatim() -> None:
    assert chosen(Flags(state_root=" rel/./x ")).root == " rel/./x "
    assert chosen(None, {"AGENT_COORD_BACKEND": "o/r "}).repo == "o/r "


# Ref


@pytest.mark.parametrize(
    ("flags", "env", "saved", "ref"),
    [
        (Flags(backend="o/r"), {}, {}, "state"),
        (Flags(backend="o/r", ref="r"), {"AGENT_COORD_REF": "p"}, {"AGENT_COORD_REF": "s"}, "r"),
        (Flags(backend="o/r"), {"AGENT_COORD_REF": "p"}, {"AGENT_COORD_REF": "s"}, "p"),
        (Flags(backend="o/r"), {"AGENT_COORD_REF": " "}, {"AGENT_COORD_REF": "s"}, "s"),
        (Flags(backend="o/r"), ROOT, {"AGENT_COORD_REF": "s"}, "s"),
        (Flags(), REPO, {"AGENT_COORD_REF": "s"}, "state"),
        (Flags(), REPO | {"AGENT_COORD_REF": "p"}, {"AGENT_COORD_REF": "s"}, "p"),
        (Flags(), {}, REPO | {"AGENT_COORD_REF": "s"}, "s"),
        (Flags(), {"AGENT_COORD_REF": "p"}, REPO, "state"),
        (Flags(ref="r"), {}, REPO | {"AGENT_COORD_REF": "s"}, "r"),
        (Flags(backend="o/r", ignore_user_config=True), {"AGENT_COORD_REF": "p"}, {}, "state"),
        (Flags(backend="o/r", ref="r", ignore_user_config=True), {"AGENT_COORD_REF": "p"}, {}, "r"),
    ],
)
def test_the_ref_comes_from_the_tier_that_selects(flags: Flags, env: Env, saved: Env, ref: str) -> None:
    assert chosen(flags, env, saved).ref == ref


# Tokens

UNBOUND = (
    "warning: process-scoped AGENT_COORD_API_TOKEN is being used with {}, which it was not set alongside; "
    "the process token takes precedence over any saved token."
)
OTHER_URL = "process-scoped AGENT_COORD_API_TOKEN is required when the selected API URL differs from user config"
NO_TOKEN = "AGENT_COORD_API_TOKEN is required when using the HTTP backend"
SAVED = URL | {"AGENT_COORD_API_TOKEN": "saved"}
F = "https://f.example"


@pytest.mark.parametrize(
    ("flags", "env", "saved", "token", "said"),
    [
        (Flags(), URL | TOKEN, {}, "t0ken", ()),
        (Flags(), URL | TOKEN, SAVED, "t0ken", ()),
        (Flags(), {}, SAVED, "saved", ()),
        (Flags(), {"AGENT_COORD_API_TOKEN": " "}, SAVED, "saved", ()),
        (Flags(), URL, SAVED, "saved", ()),
        (Flags(), TOKEN, SAVED, "t0ken", (UNBOUND.format("https://u.example"),)),
        (A, TOKEN, {}, "t0ken", (UNBOUND.format(F),)),
        (A, TOKEN | URL, {}, "t0ken", (UNBOUND.format(F),)),
        (A, TOKEN | {"AGENT_COORD_API_URL": F}, SAVED, "t0ken", ()),
        (A, {}, {"AGENT_COORD_API_URL": F, "AGENT_COORD_API_TOKEN": " kept "}, " kept ", ()),
        (A, TOKEN | {"AGENT_COORD_API_URL": F + "/"}, {}, "t0ken", (UNBOUND.format(F),)),
        (
            Flags(api_url="https://me:pw@f.example"),
            TOKEN,
            {},
            "t0ken",
            (UNBOUND.format("https://***@f.example"),),
        ),
    ],
)
def test_a_token_goes_where_it_was_set(flags: Flags, env: Env, saved: Env, token: str, said: tuple[str, ...]) -> None:
    selection = chosen(flags, env, saved)
    assert selection.token == Secret(token)
    assert selection.said == said


@pytest.mark.parametrize(
    ("flags", "env", "saved", "message"),
    [
        (A, {}, {}, NO_TOKEN),
        (Flags(), URL, {}, NO_TOKEN),
        (Flags(), {}, URL, NO_TOKEN),
        (A, {}, URL, NO_TOKEN),
        (Flags(), URL | {"AGENT_COORD_API_TOKEN": " "}, {}, NO_TOKEN),
        (A, {}, SAVED, OTHER_URL),
        (Flags(), {"AGENT_COORD_API_URL": "https://u.example/"}, SAVED, OTHER_URL),
        (A, {}, {"AGENT_COORD_API_TOKEN": "saved"}, OTHER_URL),
    ],
)
def test_a_saved_token_goes_nowhere_else(flags: Flags, env: Env, saved: Env, message: str) -> None:
    error = refused(flags, env, saved)
    assert str(error) == message
    assert error.selection.kind == "http"
    assert error.selection.token is None
    assert "saved" not in repr(error.selection)


def test_what_was_displaced_is_said_before_a_refusal() -> None:
    assert refused(A, ROOT).selection.said == (URL_OVER_ROOT,)


def test_a_token_alone_does_not_select() -> None:
    message = (
        "AGENT_COORD_API_TOKEN is set but AGENT_COORD_API_URL is missing or empty; "
        "set AGENT_COORD_API_URL or unset AGENT_COORD_API_TOKEN"
    )
    for role in (Role.WRITE, Role.READ, Role.DOCTOR, Role.MAINTAIN):
        assert str(refused(None, HOME | TOKEN, {}, role)) == message
        assert str(refused(None, HOME, TOKEN, role)) == message
        assert chosen(S, TOKEN, TOKEN, role).said == ()


# Nothing selected


@pytest.mark.parametrize("role", [Role.WRITE, Role.READ, Role.DOCTOR, Role.MAINTAIN])
def test_the_implicit_root_is_announced(role: Role) -> None:
    selection = chosen(role=role)
    assert selection.root == "/h/.local/state/agent-coordination"
    assert selection.said == (IMPLICIT_NOTICE,)
    assert selection.implicit
    assert not selection.configured


def test_without_a_home_there_is_no_implicit_root() -> None:
    assert str(refused(None, {"HOME": "h"})) == (
        "cannot determine local state root; set XDG_STATE_HOME or HOME to an absolute path, or pass --state-root"
    )
    assert choose(Role.SHOW, Flags(), {}, {}).root is None


@pytest.mark.parametrize("role", READING)
@pytest.mark.parametrize(
    ("env", "saved", "root"),
    [
        ({"AGENT_COORD_STATUS_STATE_ROOT": "/p"}, {"AGENT_COORD_STATUS_STATE_ROOT": "/s"}, "/p"),
        ({"AGENT_COORD_STATUS_STATE_ROOT": " "}, {"AGENT_COORD_STATUS_STATE_ROOT": "/s"}, "/s"),
        (TOKEN | {"AGENT_COORD_STATUS_STATE_ROOT": "/p"}, {}, "/p"),
    ],
)
def test_a_status_root_serves_reads_silently(role: Role, env: Env, saved: Env, root: str) -> None:
    selection = chosen(None, env, saved, role, install_root="/install")
    assert (selection.root, selection.status_root, selection.implicit) == (root, True, False)
    assert selection.said == ()


@pytest.mark.parametrize("role", READING)
@pytest.mark.parametrize(
    ("flags", "env", "saved"), [(S, {}, {}), (Flags(), ROOT, {}), (Flags(), {}, ROOT), (Flags(), REPO, {})]
)
def test_a_status_root_never_overrides_a_selection(role: Role, flags: Flags, env: Env, saved: Env) -> None:
    selection = chosen(flags, env | {"AGENT_COORD_STATUS_STATE_ROOT": "/p"}, saved, role)
    assert not selection.status_root
    assert address(selection) != "/p"


@pytest.mark.parametrize("role", [Role.WRITE, Role.MAINTAIN])
def test_a_status_root_serves_nothing_else(role: Role) -> None:
    env = {"AGENT_COORD_STATUS_STATE_ROOT": "/p"}
    assert chosen(None, env, env, role, install_root="/install").implicit


@pytest.mark.parametrize("role", READING)
def test_an_install_root_with_state_serves_reads_silently(role: Role) -> None:
    selection = chosen(role=role, install_root="/install")
    assert (selection.root, selection.status_root, selection.said) == ("/install", True, ())


# Split brain

CONSUMER = "/h/.config/agent-coord/http-env.sh"
ADVISORY = (
    f"warning: split-brain configuration: {CONSUMER} configures AGENT_COORD_API_URL, but this CLI is using the local "
    "backend. Load that env file for fleet reads or remove it if local mode is intended."
)
REFUSAL = (
    f"split-brain configuration: {CONSUMER} configures AGENT_COORD_API_URL, but this CLI resolved to the implicit "
    "local backend; refusing writes that would land on the local state root while a fleet API URL is configured. "
    f"Source {CONSUMER} for fleet writes, pass --state-root PATH to choose a local root explicitly, or set "
    "AGENT_COORD_LOCAL=1 to opt into local mode."
)


def guarded(role: Role, flags: Flags | None = None, env: Env | None = None, saved: Env | None = None) -> Selection:
    """Select as a command does when the consumer file configures a fleet URL."""
    selection = chosen(flags, env, saved, role)
    concerned = concerned_by_split_brain(selection, role, flags or Flags(), HOME | (env or {}), saved or {})
    return guard(selection, role, CONSUMER) if concerned else selection


def test_an_implicit_write_is_refused() -> None:
    with pytest.raises(SelectionError) as raised:
        guarded(Role.WRITE)
    assert str(raised.value) == REFUSAL
    assert raised.value.selection.said == ()


@pytest.mark.parametrize(("flags", "env", "saved"), [(S, {}, {}), (Flags(), ROOT, {}), (Flags(), {}, ROOT)])
def test_an_explicit_root_may_be_written_and_warns_when_read(flags: Flags, env: Env, saved: Env) -> None:
    assert guarded(Role.WRITE, flags, env, saved).said == ()
    for role in READING:
        selection = guarded(role, flags, env, saved)
        assert selection.said == (ADVISORY,)
        assert selection.split_brain_file is None


def test_an_implicit_read_is_announced_and_warned_of() -> None:
    assert guarded(Role.READ).said == (IMPLICIT_NOTICE, ADVISORY)


@pytest.mark.parametrize("env", [{}, {"AGENT_COORD_STATUS_STATE_ROOT": "/p"}])
def test_a_doctor_reports_it_instead(env: Env) -> None:
    selection = guarded(Role.DOCTOR, None, env)
    assert selection.split_brain_file == CONSUMER
    assert selection.said == ()


def test_a_status_root_warns_other_readers() -> None:
    assert guarded(Role.READ, None, {"AGENT_COORD_STATUS_STATE_ROOT": "/p"}).said == (ADVISORY,)


def test_gc_is_unaffected() -> None:
    assert guarded(Role.MAINTAIN).said == (IMPLICIT_NOTICE,)


@pytest.mark.parametrize("value", ["1", "true", "yes", "True", "YES", " yes "])
def test_the_opt_in_silences_all_of_it(value: str) -> None:
    for env, saved in (({"AGENT_COORD_LOCAL": value}, {}), ({}, {"AGENT_COORD_LOCAL": value})):
        for role in (Role.WRITE, *READING):
            assert guarded(role, None, env, saved).said == (IMPLICIT_NOTICE,)


@pytest.mark.parametrize(
    ("env", "saved"),
    [
        ({"AGENT_COORD_LOCAL": "0"}, {}),
        ({"AGENT_COORD_LOCAL": ""}, {}),
        ({"AGENT_COORD_LOCAL": "on"}, {}),
        ({"AGENT_COORD_LOCAL": "0"}, {"AGENT_COORD_LOCAL": "1"}),
        ({}, {"AGENT_COORD_LOCAL": "0"}),
    ],
)
def test_anything_else_is_no_opt_in(env: Env, saved: Env) -> None:
    with pytest.raises(SelectionError):
        guarded(Role.WRITE, None, env, saved)


def test_the_guard_is_off_where_a_url_is_loaded_bypassed_or_no_local_root_is_used() -> None:
    assert guarded(Role.READ, S, URL).said == (ROOT_OVER_URL,)
    assert guarded(Role.READ, B).said == ()
    assert ADVISORY not in guarded(Role.READ, Flags(state_root="/f", ignore_user_config=True)).said


# Bypassing the user file


@pytest.mark.parametrize(
    ("flags", "option"),
    [
        (Flags(state_root="/f", ignore_user_config=True), "--state-root"),
        (Flags(api_url="https://f.example", ignore_user_config=True), "--api-url"),
        (Flags(backend="f/state", ignore_user_config=True), "--backend"),
    ],
)
@pytest.mark.parametrize("role", [Role.WRITE, Role.READ, Role.DOCTOR, Role.MAINTAIN, Role.SHOW])
def test_a_bypass_is_announced_by_its_option_and_nothing_else_conflicts(flags: Flags, option: str, role: Role) -> None:
    env = {"AGENT_COORD_API_URL": "https://f.example", "AGENT_COORD_STATUS_STATE_ROOT": "/p"} | ROOT | REPO | TOKEN
    selection = chosen(flags, env, {}, role)
    bypassed = "warning: canonical user configuration bypassed by --ignore-user-config; "
    assert selection.said == (f"{bypassed}backend selected explicitly by {option}.",)
    assert selection.backend_source == "cli"


def test_a_bypass_keeps_the_process_token_and_says_when_it_was_set_for_another_url() -> None:
    flags = Flags(api_url=F, ignore_user_config=True)
    selection = chosen(flags, URL | TOKEN)
    assert selection.token == Secret("t0ken")
    assert selection.said[1:] == (UNBOUND.format(F),)
    assert str(refused(flags, URL)) == NO_TOKEN


# Roles, secrets and URLs


@pytest.mark.parametrize(
    ("role", "commands"),
    [
        (
            Role.WRITE,
            "claim release heartbeat record-event register-batch attention-upsert attention-resolve run unheard-of",
        ),
        (Role.READ, "status log batch-audit attention-get attention-list"),
        (Role.DOCTOR, "doctor"),
        (Role.MAINTAIN, "gc"),
        (Role.INDEPENDENT, "version bootstrap demo completion"),
        (Role.SHOW, "config"),
    ],
)
def test_every_command_has_a_role(role: Role, commands: str) -> None:
    assert {role_of(command) for command in commands.split()} == {role}


def test_the_words_of_config_have_roles_of_their_own() -> None:
    assert (role_of("config"), role_of("config set")) == (Role.SHOW, Role.SET)


def test_a_secret_shows_itself_only_when_asked() -> None:
    selection = chosen(Flags(api_url="https://me:pw@f.example"), TOKEN)
    assert selection.token is not None
    assert selection.token.reveal() == "t0ken"
    for shown in (repr(selection), str(selection), f"{selection.token}", repr(selection.saying("x"))):
        assert "t0ken" not in shown
        assert "pw" not in shown
    with pytest.raises(TypeError):
        msgspec.json.encode(selection)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://coordination.example/x", "https://coordination.example/x"),
        ("https://me@h.example", "https://***@h.example"),
        ("https://me:pw@h.example:8443/x", "https://***@h.example:8443/x"),
        ("https://me:p@w@h.example", "https://***@h.example"),
        ("https://me:p/w?#@h.example", "https://***@h.example"),
        ("me:pw@h.example", "***@h.example"),
        ("//me:pw@h", "***@h"),
        ("", ""),
        ("https://", "https://"),
    ],
)
def test_a_url_is_shown_without_its_userinfo(url: str, shown: str) -> None:
    assert redact(url) == shown


@given(st.text(), st.text(st.characters(exclude_characters="@")))
def test_nothing_before_the_host_is_shown(userinfo: str, rest: str) -> None:
    assert redact(f"https://{userinfo}@{rest}") == f"https://***@{rest}"


keys = st.sampled_from(
    [
        *["AGENT_COORD_API_URL", "AGENT_COORD_API_TOKEN", "AGENT_COORD_BACKEND", "AGENT_COORD_REF", "HOME"],
        *["AGENT_COORD_STATE_ROOT", "AGENT_COORD_STATUS_STATE_ROOT", "AGENT_COORD_LOCAL", "XDG_STATE_HOME"],
    ]
)
tiers = st.dictionaries(keys, st.sampled_from(["", " ", "/x", "/y", "1"]))
values = st.none() | st.sampled_from(["/x", "/y"])
some_flags = st.builds(
    Flags, state_root=values, api_url=values, backend=values, ref=values, ignore_user_config=st.booleans()
)


@given(st.sampled_from([Role.WRITE, Role.READ, Role.DOCTOR, Role.MAINTAIN]), some_flags, tiers, tiers)
def test_a_saved_token_is_used_only_with_its_own_url(role: Role, flags: Flags, env: Env, saved: Env) -> None:
    saved |= {"AGENT_COORD_API_TOKEN": "saved"}
    try:
        selection = choose(role, flags, env, saved)
    except SelectionError as error:
        selection = error.selection
    if selection.token == Secret("saved"):
        assert selection.url == saved["AGENT_COORD_API_URL"]
    assert len(conflicts(selection)) <= 1
    assert (selection.kind == "http") or selection.token is None
