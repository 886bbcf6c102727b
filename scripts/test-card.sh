#!/bin/sh
# The card for Open OnDemand, drawn by Ruby's ERB as the dashboard draws it, with a program in rankmesh's place that counts its calls.
set -eu
cd "$(dirname "$0")/.."
command -v ruby >/dev/null || { echo "test-card.sh needs ruby: apt-get install ruby" >&2; exit 1; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cat >"$dir/rankmesh" <<'P'
#!/bin/sh
echo "$*" >>"$(dirname "$0")/calls"
[ ! -e "$(dirname "$0")/slow" ] || exec sleep 30
echo 'Rank 5 on host <b>node-3</b> holds up the other 7 ranks'
exit 3
P
chmod +x "$dir/rankmesh"
draw() {
    RANKMESH=${2:-$dir/rankmesh} XDG_CACHE_HOME=$dir/cache ruby -rerb -e '
        job_id = ARGV[1]
        puts ERB.new(File.read(ARGV[0]), trim_mode: "-").result(binding)' packaging/ondemand/info.html.erb "$1"
}
is() { case $2 in *"$3"*) echo "$1: ok" ;; *) echo "$1: $2"; exit 1 ;; esac; }
is "a verdict, escaped" "$(draw 4711)" 'Rank 5 on host &lt;b&gt;node-3&lt;/b&gt; holds up'
is "again" "$(draw 4711)" 'Rank 5'
[ "$(wc -l <"$dir/calls")" = 1 ] || { echo "asked more than once a minute"; exit 1; }
is "its arguments" "$(cat "$dir/calls")" 'stragglers --job 4711 --timeout 5s'
is "an array's task" "$(draw 4711_3)" 'Rank 5'
is "no number" "$(draw '4711; id')" 'no number yet'
is "no program" "$(draw 4712 "$dir/nothing")" "failed to run command"
touch "$dir/slow"
is "no answer" "$(draw 4713)" 'no answer within 10 s'
