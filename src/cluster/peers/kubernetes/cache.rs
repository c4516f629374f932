//! What a watch has reported so far, reduced to what matters.

use std::collections::BTreeMap;

use kube::ResourceExt;
use kube::runtime::watcher::Event;

/// Values of objects by the objects' names.
#[derive(Debug)]
pub(super) struct Cache<V> {
    values: BTreeMap<String, V>,
    /// A new list, while it is on its way.
    next: BTreeMap<String, V>,
    listed: bool,
}

impl<V> Cache<V> {
    pub(super) fn new() -> Self {
        Cache { values: BTreeMap::new(), next: BTreeMap::new(), listed: false }
    }

    /// Takes in an event. A list replaces what was known at its end, not at its beginning: an interrupted one must
    /// not make nodes vanish.
    pub(super) fn take<T: ResourceExt>(&mut self, event: Event<T>, reduce: impl Fn(&T) -> V) {
        match event {
            Event::Init => self.next.clear(),
            Event::InitApply(object) => drop(self.next.insert(object.name_any(), reduce(&object))),
            Event::InitDone => {
                self.values = std::mem::take(&mut self.next);
                self.listed = true;
            }
            Event::Apply(object) => drop(self.values.insert(object.name_any(), reduce(&object))),
            Event::Delete(object) => drop(self.values.remove(&object.name_any())),
        }
    }

    /// Every value with its name; `None` until there was a whole list.
    pub(super) fn values(&self) -> Option<&BTreeMap<String, V>> {
        self.listed.then_some(&self.values)
    }
}
