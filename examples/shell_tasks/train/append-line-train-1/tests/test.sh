#!/bin/bash
# Grades what the agent left in /workspace: 1 if every check holds, else 0. Only the data of regular files counts:
# links, pipes and devices fail, nothing that the agent made is run.
export PATH=/usr/bin:/bin LC_ALL=C
set -o pipefail
cd / || exit 1
reward=/logs/verifier/reward.txt
/usr/bin/mkdir -p /logs/verifier
/usr/bin/rm -f "$reward"
echo 0 >"$reward"

fail() { echo "failed: $*"; exit 0; }

# No part of the path below /workspace is a symbolic link.
plain() {
  local path=$1
  while [ "$path" != / ]; do
    [ -L "$path" ] && fail "$path is a link"
    path=$(/usr/bin/dirname -- "$path")
  done
}

# has_text FILE TEXT: a regular file with exactly this text, white space at its end aside.
has_text() {
  plain "$1"
  [ -f "$1" ] || fail "$1 is no file"
  local text
  text=$(/usr/bin/head -c 65536 -- "$1" | /usr/bin/tr '\000' '\001' && echo .) || fail "$1 is not readable"
  text=${text%.}
  text=${text%"${text##*[![:space:]]}"}
  [ "$text" = "$2" ] || fail "$1 has another text"
}

is_folder() { plain "$1"; [ -d "$1" ] || fail "$1 is no folder"; }

is_absent() { [ -e "$1" ] || [ -L "$1" ] || return 0; fail "$1 is still there"; }

has_text /workspace/survey.txt 'winter moon tree
moon winter fox
red cold tree
moon river old
sky warm house
bright quick'
echo 1 >"$reward"
