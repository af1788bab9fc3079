"""The code by which each shell asks for candidates: `agent-coord __complete SHELL INDEX WORDS…`.

Files are left to the shell, which knows better how to complete them; so each script knows the options
that take a path (`@PATH_OPTIONS@`). None of them ever says anything: a prompt is no place for errors.
"""

_BASH = r"""
# bash completion for agent-coord; to use it: source <(agent-coord completion bash)
_agent_coord() {
    local IFS=$' \t\n' rest=${COMP_LINE-} piece previous= spaced head= line index=0 i
    local -a words=()
    COMPREPLY=()
    # Where COMP_WORDBREAKS has ':' and '=', words arrive in pieces: they are put together again.
    rest=${rest#*"${COMP_WORDS[0]}"}
    for ((i = 1; i < ${#COMP_WORDS[@]}; i++)); do
        piece=${COMP_WORDS[i]}
        spaced=
        [[ $rest == [[:space:]]* ]] && spaced=yes
        rest=${rest#*"$piece"}
        if ((i > 1)) && [[ -n $piece && -n $previous && -z $spaced ]] &&
            [[ $piece != *[!:=]* || $previous != *[!:=]* ]]; then
            ((i == COMP_CWORD)) && head=${words[${#words[@]} - 1]}
            words[${#words[@]} - 1]+=$piece
        else
            words+=("$piece")
        fi
        ((i <= COMP_CWORD)) && index=$((${#words[@]} - 1))
        previous=$piece
    done
    local current=${words[index]-} before=
    ((index > 0)) && before=${words[index - 1]}
    [[ $current == --*=* ]] && before=${current%%=*}
    case $before in
        @PATH_OPTIONS@)
            compopt -o default 2>/dev/null
            return 0
            ;;
    esac
    # Only what follows the last ':' or '=' is replaced by a candidate, so that much of it is taken off.
    piece=${COMP_WORDS[COMP_CWORD]-}
    if [[ -n $piece && $piece != *[!:=]* ]]; then
        head=$current
    elif [[ $piece != [\"\']* ]]; then
        line=${piece##*[:=]}
        [[ $line != "$piece" && ${COMP_WORDBREAKS-} == *[:=]* ]] && head+=${piece%"$line"}
    fi
    while IFS= read -r line; do
        COMPREPLY+=("${line#"$head"}")
    done < <(command agent-coord __complete bash "$index" "${words[@]}" 2>/dev/null)
    return 0
}
complete -o nosort -F _agent_coord agent-coord 2>/dev/null || complete -F _agent_coord agent-coord
"""

_ZSH = r"""
#compdef agent-coord
# zsh completion for agent-coord; to use it: source <(agent-coord completion zsh), after compinit
_agent_coord() {
    local before= current=$words[CURRENT] line value
    local -a values shown
    local -i longest=0
    (( CURRENT > 1 )) && before=$words[CURRENT-1]
    [[ $current == --*=* ]] && before=${current%%=*}
    case $before in
        (@PATH_OPTIONS@)
            [[ $current == --*=* ]] && compset -P '*='
            _files
            return
            ;;
    esac
    local -a lines
    lines=("${(@f)$(command agent-coord __complete zsh $(( CURRENT - 2 )) "${(@)words[2,-1]}" 2>/dev/null)}")
    for line in "${lines[@]}"; do
        value=${line%%$'\t'*}
        [[ -n $value ]] || continue
        values+=("$value")
        (( $#value > longest )) && longest=$#value
    done
    (( $#values )) || return 1
    if [[ "$lines" == *$'\t'* ]]; then
        for line in "${lines[@]}"; do
            value=${line%%$'\t'*}
            [[ -n $value ]] || continue
            [[ $line == *$'\t'* ]] && value="${(r:$longest:)value}  -- ${line#*$'\t'}"
            shown+=("$value")
        done
        compadd -V agent-coord -l -d shown -a values
    else
        compadd -V agent-coord -a values
    fi
}
if [[ ${funcstack[1]-} == _agent_coord ]]; then
    _agent_coord "$@"
elif (( ${+functions[compdef]} )); then
    compdef _agent_coord agent-coord
fi
"""

_FISH = r"""
# fish completion for agent-coord; to use it: agent-coord completion fish | source
function __agent_coord_complete
    set -l words (commandline -opc 2>/dev/null)
    set -e words[1]
    set -l current (commandline -ct 2>/dev/null)
    set -l before ''
    set -l head ''
    if set -q words[1]
        set before $words[-1]
    end
    if string match -q -- '--*=*' "$current"
        set before (string replace -r '=.*' '' -- "$current")
        set head "$before="
    end
    if contains -- "$before" @PATH_OPTIONS@
        for path in (__fish_complete_path (string replace -- "$head" '' "$current") 2>/dev/null)
            echo -- "$head$path"
        end
        return
    end
    command agent-coord __complete fish (count $words) $words "$current" 2>/dev/null
end
complete -c agent-coord -e
complete -c agent-coord -k -f -a '(__agent_coord_complete)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
