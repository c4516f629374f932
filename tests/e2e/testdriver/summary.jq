# What a report of ginkgo says, for people: the counts, why specs were skipped, and which failed.

def pad($n): tostring | if length < $n then " " * ($n - length) + . else . end;

def name: .ContainerHierarchyTexts + [.LeafNodeText] | join(" ");

# "[Testpattern: Dynamic PV (xfs)] volumes …" is the name of a suite with a pattern.
def suite: [.ContainerHierarchyTexts[] | capture("\\[Testpattern: (?<pattern>[^]]*)\\] *(\\[[^]]*\\] *)*(?<suite>[^ ]+)")] | first // {pattern: "", suite: "?"};

# A reason without what differs from spec to spec.
def reason:
  .Failure.Message
  | gsub("Driver:? \"?([a-z-]+\\.)?hostloop\\.csi\\.dev\"? "; "the driver ")
  | gsub(" *(--|-) *skipping|, skipping|skipping "; "") | gsub("\\s+$"; "");

[.[].SpecReports[] | select(.LeafNodeType == "It") | select(any(.ContainerHierarchyTexts[]?; test("\\[Driver: ([a-z-]+\\.)?hostloop")))]
# Of the others that have a StorageClass of their own only some specs are wanted.
| map(select(.State == "skipped" and (.Failure.Message // "") == "" and (name | test("\\[Driver: (directory\\.)?hostloop")))) as $not_chosen
| ($left_out | map(.spec as $spec | .count = ($not_chosen | map(select(name | test($spec))) | length))) as $left_out
| map(select(.State == "skipped" and (.Failure.Message // "") != "")) as $skipped
| map(select(.State == "passed")) as $passed
| map(select(.State != "passed" and .State != "skipped")) as $failed
| "skipped by the suite, with its reason:",
  ( $skipped | group_by(reason) | sort_by(-length)[]
    | "\(length | pad(5))  \(.[0] | reason)\n       in \(map(suite.suite) | unique | join(", "))" ),
  "",
  "left out:",
  ( $left_out[] | "\(.count | pad(5))  \(.spec): \(.reason)" ),
  "",
  "failed:",
  ( $failed[] | "  \(.State): \(name)\n    \(.Failure.Message // "" | split("\n")[0:4] | join("\n    "))" ),
  "",
  "\($passed | length) passed, \($failed | length) failed, \($skipped | length) skipped by the suite, \($left_out | map(.count) | add) left out"
