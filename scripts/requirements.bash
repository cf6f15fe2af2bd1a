# Sourced by the other scripts: their requirements from the system, and how to install them.
#
# As root the scripts install a missing program from its Debian package. Otherwise they print the
# one apt-get line and stop, so that no build asks for a password in the middle.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"

# Cargo's output directory. The other products of these scripts stay under target/.
built="${CARGO_TARGET_DIR:-target}"
case "$built" in /*) ;; *) built="$root/$built" ;; esac

say() { printf '\n==> %s\n' "$*"; }

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# packages_for PROGRAM...: the Debian packages of those programs that are missing here.
packages_for() {
  local program
  for program in "$@"; do
    case "$program" in
      cc) command -v cc >/dev/null || echo gcc libc6-dev ;;
      python3) command -v python3 >/dev/null || echo python3 ;;
      venv) python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv ;;
      java) command -v java >/dev/null || echo default-jre-headless ;;
      javac) command -v javac >/dev/null || echo default-jdk-headless ;;
      mvn) command -v mvn >/dev/null || echo maven ;;
      autoconf | automake | cmake | make) command -v "$program" >/dev/null || echo "$program" ;;
      libtool) command -v libtoolize >/dev/null || echo libtool ;;
      c++) command -v c++ >/dev/null || echo g++ ;;
      node) command -v node >/dev/null || echo nodejs ;;
      npm) command -v npm >/dev/null || echo npm ;;
      glusterfs) command -v glusterfs >/dev/null || echo glusterfs-client ;;
      glusterfsd) command -v glusterfsd >/dev/null || echo glusterfs-server ;;
      clickhouse-server) command -v clickhouse-server >/dev/null || echo clickhouse-server clickhouse-client ;;
      redis-server) command -v redis-server >/dev/null || echo redis-server ;;
      *) fail "no package is known for the program '$program'" ;;
    esac
  done
}

# need PROGRAM...: installs missing programs, or says how and stops.
need() {
  local missing
  missing="$(packages_for "$@" | tr '\n' ' ')"
  missing="${missing% }"
  [ -z "$missing" ] && return
  local line="apt-get install -y --no-install-recommends $missing"
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    printf 'error: missing system packages. Install them and run this again:\n\n  sudo %s\n\n' "$line" >&2
    exit 1
  fi
  say "installing $missing"
  export DEBIAN_FRONTEND=noninteractive
  # shellcheck disable=SC2086 # a list of packages
  $line </dev/null || { apt-get update </dev/null && $line </dev/null; }
}

need_cargo() {
  # They replace the flags of .cargo/config.toml, which the simulation needs.
  [ -z "${RUSTFLAGS:-}" ] || export RUSTFLAGS="$RUSTFLAGS --cfg tokio_unstable"
  [ -z "${RUSTDOCFLAGS:-}" ] || export RUSTDOCFLAGS="$RUSTDOCFLAGS --cfg tokio_unstable"
  command -v cargo >/dev/null && return
  [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ] || fail "cargo is not installed; Landfast needs Rust 1.95 or newer"
  PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
}

# ready_venv: target/venv with tests/clients/requirements.txt, made anew when that file changes.
ready_venv() {
  need python3 venv
  local wanted
  wanted="$(cksum <tests/clients/requirements.txt)"
  [ "$(cat target/venv/.requirements 2>/dev/null)" = "$wanted" ] && return
  say "installing the Python clients into target/venv"
  rm -rf target/venv
  mkdir -p target
  python3 -m venv target/venv
  target/venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/clients/requirements.txt
  printf '%s\n' "$wanted" >target/venv/.requirements
}

# build_beside BENCH...: the program, and benches that measure it. The program is built in a call of cargo of its own: in
# one with the benches, cargo would compile the simulation's mutants into it.
build_beside() {
  local bench benches=()
  for bench in "$@"; do benches+=(--bin "$bench"); done
  say "building (about fifteen minutes on two cores, the first time)"
  cargo build --release --package landfast </dev/null
  cargo build --release --package landfast-benches "${benches[@]}" </dev/null
}
