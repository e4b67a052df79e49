# shellcheck shell=bash
#
# lib.sh - what test/run and test/demo have in common: find or install what is needed,
# build the extension into a PostgreSQL of its own, leave nothing.
#
# The extension is not installed into the system. PostgreSQL looks for its files
# relative to where its programs lie, so a copy of the programs in a directory with
# links to all else is a complete server, into which `make install` needs no
# root, disturbs nobody, and which goes away with its directory. (PostgreSQL learnt
# extension_control_path only in version 18.)
#
# Sourced, never run. The caller has set -euo pipefail and sets ZKL_ROOT.

# Within a run the inner script goes on counting where the outer one was.
zkl_started=$((SECONDS - ${ZKLOCK_ELAPSED:-0}))

# One line of progress with the seconds since the start.
say() { printf '[%3ds] %s\n' $((SECONDS - zkl_started)) "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 2; }

# ---------------------------------------------------------------------
# Packages

zkl_sudo() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		fail "neither root nor sudo: please run as root: $*"
	fi
}

zkl_installed() {
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# PGCONFIG: what PG_CONFIG says, else the newest installed server, else, after
# an update of the lists, the newest that the distribution has.
zkl_choose_postgres() {
	local newest=
	if [ -n "${PG_CONFIG:-}" ]; then
		PGCONFIG=$(command -v "$PG_CONFIG") || fail "PG_CONFIG=$PG_CONFIG is not there"
		return
	fi
	newest=$({ find /usr/lib/postgresql -path '*/bin/postgres' 2>/dev/null || true; } | sort -V | tail -n 1)
	if [ -n "$newest" ]; then
		PGCONFIG=${newest%/postgres}/pg_config
		return
	fi
	zkl_update_lists
	newest=$({ apt-cache pkgnames postgresql-server-dev- | grep -E -- '-[0-9]+$' || true; } | sort -V | tail -n 1)
	[ -n "$newest" ] || fail "found no package postgresql-server-dev-NN"
	PGCONFIG=/usr/lib/postgresql/${newest##*-}/bin/pg_config
}

zkl_lists_are_new=
zkl_update_lists() {
	[ -z "$zkl_lists_are_new" ] || return 0
	zkl_quietly "apt-get update" zkl_sudo env DEBIAN_FRONTEND=noninteractive apt-get -q update
	zkl_lists_are_new=1
}

# Run a command whose output is of interest only when it fails.
zkl_quietly() {
	local what=$1 log
	shift
	log=$(mktemp)
	if ! "$@" >"$log" 2>&1 </dev/null; then
		tail -n 30 "$log" >&2
		rm -f "$log"
		fail "$what failed"
	fi
	rm -f "$log"
}

# zkl_need_packages [PACKAGE...]: install what the build and the tests need, and these,
# as far as it is not there.
zkl_need_packages() {
	local major missing=() p
	command -v apt-get >/dev/null ||
		{ say "this is no Debian: the tools are taken as they are"; zkl_choose_postgres; return; }
	zkl_choose_postgres
	# default-jre-headless comes with zookeeper; slf4j-simple is what makes it log.
	local wanted=(gcc libc6-dev make perl libipc-run-perl zookeeper libslf4j-java libzookeeper-mt-dev)
	case $PGCONFIG in
		/usr/lib/postgresql/*)
			major=${PGCONFIG#/usr/lib/postgresql/}
			major=${major%%/*}
			wanted+=("postgresql-$major" "postgresql-server-dev-$major") ;;
	esac
	for p in "${wanted[@]}" "$@"; do
		zkl_installed "$p" || missing+=("$p")
	done
	if [ ${#missing[@]} -gt 0 ]; then
		say "installing ${missing[*]}"
		zkl_update_lists
		zkl_quietly "apt-get install" zkl_sudo env DEBIAN_FRONTEND=noninteractive \
			apt-get -q install -y --no-install-recommends "${missing[@]}"
	fi
}

# Install what makes more tests run, and go on without it: those are skipped, and say so.
zkl_want_packages() {
	local p
	command -v apt-get >/dev/null || return 0
	for p in "$@"; do
		zkl_installed "$p" && continue
		say "installing $p"
		(zkl_quietly "apt-get install" zkl_sudo env DEBIAN_FRONTEND=noninteractive \
			apt-get -q install -y --no-install-recommends "$p") || say "without $p: its tests are skipped"
	done
}

# ---------------------------------------------------------------------
# A PostgreSQL of our own, with the extension in it

# Longest common directory of the arguments.
zkl_common_dir() {
	local common=$1 d
	shift
	for d in "$@"; do
		while [ "${d#"$common"/}" = "$d" ]; do
			common=${common%/*}
			[ -n "$common" ] || break
		done
	done
	printf '%s\n' "$common"
}

# zkl_stage_postgres DIR: sets PGBIN, to be put first in PATH, and STAGED, the
# pg_config for `make install`. Building still takes PGCONFIG: headers stay put.
zkl_stage_postgres() {
	local stage=$1 bin share lib prefix
	bin=$("$PGCONFIG" --bindir)
	share=$("$PGCONFIG" --sharedir)
	lib=$("$PGCONFIG" --pkglibdir)
	prefix=$(zkl_common_dir "$bin" "$share" "$lib")
	PGBIN=$stage${bin#"$prefix"}
	STAGED=$PGBIN/pg_config

	mkdir -p "$PGBIN" "$stage${share#"$prefix"}" "$stage${lib#"$prefix"}"
	cp -as "$share/." "$stage${share#"$prefix"}/"
	cp -as "$lib/." "$stage${lib#"$prefix"}/"
	# Real copies: a link would lead the server back to where it was installed.
	cp -aL "$bin/." "$PGBIN/"
	[ "$("$STAGED" --sharedir)" = "$stage${share#"$prefix"}" ] ||
		fail "PostgreSQL's programs cannot be moved to $stage"

	# A zklock of the system's must not be what is tested.
	find "$stage" -name 'zklock*' -exec rm -rf {} +
}

# zkl_copy_tree DIR: the checkout with what is not committed yet, without what
# was built in it.
zkl_copy_tree() {
	mkdir -p "$1"
	tar -C "$ZKL_ROOT" --exclude=./.git --exclude='*.o' --exclude='*.bc' --exclude='*.so' \
		--exclude=./test/build --exclude='./test/*/build' --exclude=./tmp_check \
		--exclude=./src/.have-zookeeper -cf - . | tar -C "$1" -xf -
}

# ---------------------------------------------------------------------
# Leaving nothing. Everything started below a work directory carries its path in its
# environment, through fork, exec and daemonising; so what must go can be told from
# what others run, however it got detached.

zkl_processes_of() {
	local file pid
	# grep -z: the environment's strings end in NUL
	{ grep -lzx "ZKLOCK_WORK=$1" /proc/[0-9]*/environ 2>/dev/null || true; } | while read -r file; do
		pid=${file#/proc/}
		pid=${pid%/environ}
		# Zombies are their parents' affair.
		grep -q '^State:.Z' "/proc/$pid/status" 2>/dev/null || printf '%s\n' "$pid"
	done
}

# zkl_end_processes DIR [GRACE]: kill what still runs; prints what that was. Servers
# that were told to end a moment ago get GRACE tenths of a second to do so.
zkl_end_processes() {
	local pids pid grace=${2:-0}
	while pids=$(zkl_processes_of "$1"); [ -n "$pids" ] && [ "$grace" -gt 0 ]; do
		grace=$((grace - 1))
		sleep 0.1
	done
	for pid in $pids; do
		printf '%s %s\n' "$pid" "$({ tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null | cut -c1-100)"
	done
	# Some may have forked meanwhile: until none is left.
	while [ -n "$pids" ]; do
		for pid in $pids; do kill -KILL "$pid" 2>/dev/null || true; done
		sleep 0.1
		pids=$(zkl_processes_of "$1")
	done
}

zkl_clean_up() {
	trap '' INT TERM HUP
	zkl_end_processes "$work" >/dev/null
	rm -rf "$work"
}

# zkl_go_inside SCRIPT ARGUMENT...: run SCRIPT (a path in the checkout) again, with
# ZKLOCK_INSIDE set, in a copy of the checkout, as an ordinary user: PostgreSQL
# refuses to run as root. Sets work, the directory that all happens in. Its processes and
# the directory go when this shell ends; the caller may look at them before.
zkl_go_inside() {
	local script=$1 as=()
	shift
	work=$(mktemp -d "${TMPDIR:-/tmp}/zklock-${script##*/}-XXXXXX")
	trap zkl_clean_up EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	say "copying the checkout"
	zkl_copy_tree "$work/tree"
	mkdir "$work/tmp"
	if [ "$(id -u)" = 0 ]; then
		chown -R postgres: "$work"
		as=(runuser -u postgres --)
	fi
	# In the background, because bash runs a trap only between foreground commands.
	"${as[@]}" env ZKLOCK_INSIDE=1 ZKLOCK_WORK="$work" TMPDIR="$work/tmp" HOME="$work" \
		ZKLOCK_ELAPSED=$((SECONDS - zkl_started)) PGCONFIG="$PGCONFIG" bash "$work/tree/$script" "$@" </dev/null &
	wait $!
}
