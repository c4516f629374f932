//! Whether a pod can run on a node, as far as a move has to know it: the scheduler says the rest. No I/O.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, Pod, Taint, Toleration,
};
use kube::ResourceExt as _;

/// Why a new pod like this cannot run on the node; `None` where nothing is in the way.
pub fn obstacle(pod: &Pod, node: &Node) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let named = pod.name_any();
    let labels = node.labels();
    let selected = spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    if !selected || required.is_some_and(|selector| !matches(selector, node)) {
        return Some(format!("the nodeSelector or the node affinity of pod {named} leaves it out"));
    }
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let keeps_away = |taint: &&Taint| taint.effect == "NoSchedule" || taint.effect == "NoExecute";
    let taint = taints.filter(keeps_away).find(|taint| !tolerations.iter().any(|t| tolerates(t, taint)))?;
    Some(format!("pod {named} does not tolerate its taint {}", taint.key))
}

/// Whether no new pods come to the node.
pub fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false)
}

/// Whether pods on the node can use the volume.
pub fn reaches(volume: &PersistentVolume, node: &Node) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    affinity.and_then(|affinity| affinity.required.as_ref()).is_none_or(|selector| matches(selector, node))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect =
        toleration.effect.as_deref().is_none_or(|effect| effect.is_empty() || effect == taint.effect);
    let key = toleration.key.as_deref().unwrap_or_default();
    let exists = toleration.operator.as_deref() == Some("Exists");
    let value =
        || toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default();
    effect && ((key.is_empty() && exists) || (key == taint.key && (exists || value())))
}

/// One term is enough; of a term everything has to be so (core/v1, NodeSelector).
fn matches(selector: &NodeSelector, node: &Node) -> bool {
    selector.node_selector_terms.iter().any(|term| meets(term, node))
}

fn meets(term: &NodeSelectorTerm, node: &Node) -> bool {
    let fields = BTreeMap::from([("metadata.name".to_owned(), node.name_any())]);
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let of_fields = term.match_fields.as_deref().unwrap_or_default();
    // A term without anything matches nothing.
    !(expressions.is_empty() && of_fields.is_empty())
        && expressions.iter().all(|requirement| holds(requirement, node.labels()))
        && of_fields.iter().all(|requirement| holds(requirement, &fields))
}

fn holds(requirement: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let value = labels.get(&requirement.key);
    let values = requirement.values.as_deref().unwrap_or_default();
    let number = |text: &String| text.parse::<i64>().ok();
    let limit = || values.first().and_then(number);
    match requirement.operator.as_str() {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => value.is_none_or(|value| !values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => value.and_then(number).zip(limit()).is_some_and(|(value, limit)| value > limit),
        "Lt" => value.and_then(number).zip(limit()).is_some_and(|(value, limit)| value < limit),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(labels: Value, spec: Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n", "labels": labels}, "spec": spec})).unwrap()
    }

    fn pod(spec: Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = json!([]);
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    fn required(expression: Value) -> Pod {
        pod(json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}}))
    }

    #[test]
    fn selectors_and_affinity_leave_nodes_out() {
        let there = node(json!({"disk": "ssd", "gen": "5"}), json!({}));
        assert_eq!(obstacle(&pod(json!({"nodeSelector": {"disk": "ssd"}})), &there), None);
        assert!(
            obstacle(&pod(json!({"nodeSelector": {"disk": "hdd"}})), &there)
                .unwrap()
                .contains("nodeSelector")
        );
        for (operator, values, fits) in [
            ("In", json!(["ssd"]), true),
            ("In", json!(["hdd"]), false),
            ("NotIn", json!(["hdd"]), true),
            ("NotIn", json!(["ssd"]), false),
            ("Exists", json!([]), true),
            ("DoesNotExist", json!([]), false),
            ("Near", json!([]), false),
        ] {
            let pod = required(json!({"key": "disk", "operator": operator, "values": values}));
            assert_eq!(obstacle(&pod, &there).is_none(), fits, "{operator} {values}");
        }
        for (operator, limit, fits) in
            [("Gt", "4", true), ("Gt", "5", false), ("Lt", "6", true), ("Lt", "x", false)]
        {
            let pod = required(json!({"key": "gen", "operator": operator, "values": [limit]}));
            assert_eq!(obstacle(&pod, &there).is_none(), fits, "{operator} {limit}");
        }
    }

    #[test]
    fn taints_keep_pods_away_that_do_not_tolerate_them() {
        let tainted =
            |effect: &str| node(json!({}), json!({"taints": [{"key": "k", "value": "v", "effect": effect}]}));
        let with = |toleration: Value| pod(json!({"tolerations": [toleration]}));
        assert!(obstacle(&pod(json!({})), &tainted("NoSchedule")).unwrap().contains("taint k"));
        assert_eq!(obstacle(&pod(json!({})), &tainted("PreferNoSchedule")), None);
        for (toleration, fits) in [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}), true),
            (json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"}), false),
            (json!({"key": "k", "value": "v"}), true),
            (json!({"key": "k", "value": "w"}), false),
            (json!({"key": "other", "operator": "Exists"}), false),
        ] {
            assert_eq!(
                obstacle(&with(toleration.clone()), &tainted("NoExecute")).is_none(),
                fits,
                "{toleration}"
            );
        }
    }
}
