//! Every way in which the descriptor is not what the facts say.

use serde_json::Value as Json;

use super::descriptor::protocol_of_pool;
use super::*;

/// Every way in which `ours` is not `new` plus what only `old` has.
pub fn differences(ours: &Protocol, new: &Protocol, old: &Protocol) -> Vec<String> {
    let mut found = Vec::new();
    for (key, wanted) in &new.elements {
        match ours.elements.get(key) {
            None => found.push(format!("{key}: in 1.13, missing here")),
            Some(here) => {
                compare(&mut found, key, here, wanted, "1.13");
                if here.deprecated {
                    found.push(format!("{key}: in 1.13, but deprecated here"));
                }
            }
        }
    }
    for (key, wanted) in &old.elements {
        match (ours.elements.get(key), new.elements.get(key)) {
            (None, None) => found.push(format!("{key}: in 1.12, missing here")),
            (Some(here), None) => compare(&mut found, key, here, wanted, "1.12"),
            // What both releases have must mean the same in both. Options may
            // differ: elements leave alpha.
            (_, Some(newer)) if newer.shape != wanted.shape => {
                found.push(format!("{key}: `{}` in 1.12, `{}` in 1.13", wanted.shape, newer.shape))
            }
            (_, Some(_)) => {}
        }
    }
    for (key, here) in &ours.elements {
        if !new.elements.contains_key(key) {
            kept_from_old(&mut found, key, here, ours, new, old);
        }
    }
    for (message, numbers) in &new.reserved {
        for number in numbers {
            if !holds(ours, message, *number) {
                found.push(format!("message {message}: {number} is left unprotected"));
            }
        }
    }
    found
}

pub fn compare(found: &mut Vec<String>, key: &str, here: &Element, wanted: &Element, release: &str) {
    if here.shape != wanted.shape {
        found.push(format!("{key}: `{}` in {release}, `{}` here", wanted.shape, here.shape));
    }
    for option in wanted.options.difference(&here.options) {
        found.push(format!("{key}: option {option} of {release} missing here"));
    }
    for option in here.options.difference(&wanted.options) {
        found.push(format!("{key}: option {option} here, not in {release}"));
    }
}

/// Checks an element 1.13 does not have: it must come from 1.12, be deprecated
/// (itself or the message around it), and not stand on a number that 1.13 may
/// give away.
pub fn kept_from_old(
    found: &mut Vec<String>,
    key: &str,
    here: &Element,
    ours: &Protocol,
    new: &Protocol,
    old: &Protocol,
) {
    if !old.elements.contains_key(key) {
        found.push(format!("{key}: here, in neither release"));
        return;
    }
    let around =
        here.field.as_ref().and_then(|(message, _)| ours.elements.get(&format!("message {message}")));
    if !here.deprecated && !around.is_some_and(|message| message.deprecated) {
        found.push(format!("{key}: only in 1.12, but not deprecated here"));
    }
    let Some((message, number)) = &here.field else {
        return;
    };
    let still_there = new.elements.contains_key(&format!("message {message}"));
    let reserved = new.reserved.get(message);
    if still_there && !reserved.is_some_and(|numbers| numbers.contains(number)) {
        found.push(format!("{key}: only in 1.12, 1.13 does not reserve it"));
    }
}

/// Whether nothing new can be put on field `number` of `message`.
pub fn holds(protocol: &Protocol, message: &str, number: u64) -> bool {
    let reserved = protocol.reserved.get(message);
    let taken = (message.to_owned(), number);
    reserved.is_some_and(|numbers| numbers.contains(&number))
        || protocol.elements.values().any(|element| element.field.as_ref() == Some(&taken))
}

/// Differences between the built descriptor and these facts.
pub fn check(new: &Json, old: &Json) -> Vec<String> {
    differences(&protocol_of_pool(&pool()), &protocol_of_facts(new), &protocol_of_facts(old))
}
