//! Names that a controller reserves on a node.

use hostloop::app;
use hostloop::error::Error;
use hostloop::model::{NodeKey, VolumeId};

use crate::harness::{NODE, machine, settings};

#[test]
fn a_name_is_reserved_only_on_its_own_node() {
    let driver = app::driver(settings(), machine().restart()).expect("it starts");
    driver.recover();
    let [own, other] = [NODE, "node-b"].map(|node| VolumeId::of_name(&NodeKey::of(node), "v"));
    let found = |id| format!("{:?}", driver.find_volume(id).expect("an answer").found);
    driver.reserve_name(&own).expect("a token");
    assert_eq!(found(&own), "Reserved");
    let refused = driver.reserve_name(&other).expect_err("it cannot be here");
    assert!(matches!(refused, Error::NotFound(_)), "{refused}");
    assert_eq!(found(&other), "Nothing");
}
