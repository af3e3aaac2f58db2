# Finds a Python that can serve: CPython 3.11 or 3.12 with venv and a shared libpython. Sourced by the scripts.

# Prints the interpreter's path, or one line on stderr that says what to install, and returns 1.
# TRTDECODE_PYTHON, when set, is the only candidate.
find_python() {
  local lib candidate verdict refusal="" tried=" "
  lib=$(dirname "${BASH_SOURCE[0]}")
  while IFS= read -r candidate; do
    case "$tried" in *" $candidate "*) continue ;; esac
    tried="$tried$candidate "
    # A pyenv shim of a version that is not active, or a file that does not run, is no candidate.
    verdict=$("$candidate" "$lib/probe_python.py" 2>/dev/null) || continue
    if [ "$verdict" = ok ]; then
      echo "$candidate"
      return 0
    fi
    # Of several refusals the most helpful is about a Python of the right version.
    if [ -z "$refusal" ] || [[ $refusal == *"needs 3.11 or"* && $verdict != *"needs 3.11 or"* ]]; then
      refusal=$verdict
    fi
  done < <(_python_candidates)
  if [ -z "$refusal" ] && [ -n "${TRTDECODE_PYTHON:-}" ]; then
    refusal="TRTDECODE_PYTHON=$TRTDECODE_PYTHON does not run; name a Python 3.11 or 3.12, or unset it"
  elif [ -z "$refusal" ]; then
    refusal="no Python 3.11 or 3.12 found on PATH, in pyenv or in uv; install one (Debian 12: apt-get install python3 python3-venv libpython3.11; elsewhere: pyenv install 3.12) or set TRTDECODE_PYTHON=/path/to/python3.12"
  fi
  echo "${0##*/}: $refusal" >&2
  return 1
}

_python_candidates() {
  if [ -n "${TRTDECODE_PYTHON:-}" ]; then
    type -P "$TRTDECODE_PYTHON" || echo "$TRTDECODE_PYTHON"
    return
  fi
  type -aP python3 python3.11 python3.12 || true
  local found
  for found in "${PYENV_ROOT:-${HOME:-/nonexistent}/.pyenv}"/versions/3.1[12].*/bin/python3 \
    "${HOME:-/nonexistent}"/.local/share/uv/python/cpython-3.1[12].*/bin/python3; do
    if [ -x "$found" ]; then echo "$found"; fi
  done
}
