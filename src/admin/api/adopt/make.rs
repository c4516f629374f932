//! `hostloop adopt --claim`: the node makes the volume, and the claim gets its PersistentVolume, or what it had if the node has refused.

use serde_json::Value;

use super::claim::{Seen, Step};
use super::failed;
use super::foreign::become_ours;
use super::give_up::{as_before, is_in_place, not_seen, whereabouts};
use crate::admin::adopt::{Class, Nodes, Session};
use crate::admin::seen::Name;
use crate::cluster::moves::exchange;
use crate::cluster::moves::objects::{Run, is_outdated};
use crate::model::AdoptionOrder;

impl<N: Nodes> Session<N> {
    /// Has the volume made, and creates its PersistentVolume.
    pub(super) async fn make(
        &mut self,
        name: &Name,
        class: &Class,
        seen: &Seen,
        recorded: &Value,
    ) -> Result<Step, String> {
        self.expect_no_pods_running(name).await?;
        let order = self.order(name, class, recorded).await?;
        let sole = self.expect_sole(&seen.volume_name, &order).await;
        sole.map_err(|why| format!("{why}, and run the command again"))?;
        let (records, uid) = (seen.records.clone(), seen.uid());
        let volume = match self.adopt_while(&order, Some((&records, &uid))).await {
            Ok(adoption) => {
                self.tell(&order, &adoption);
                let mut volume = exchange::made_again(recorded, &adoption.node_id);
                become_ours(&mut volume, &adoption);
                volume
            }
            Err(why) => {
                // Perhaps another command has ended it: then that one says what the claim gets.
                records.expect_under_way(&uid).await.map_err(|ended| format!("claim {name}: {ended}"))?;
                self.expect_not_made(name, &order, &why).await?;
                // Another command may be asking the node for the volume at this moment.
                self.stop_others(name, seen).await?;
                if let Err(stays) = self.expect_not_made(name, &order, &why).await {
                    records.give_up(&uid, false).await?;
                    return Err(stays);
                }
                records.expect_given_up(&uid).await?;
                self.screen.say(&format!("claim {name} gets its PersistentVolume back: {why}"));
                as_before(recorded)
            }
        };
        self.create(seen, &volume).await
    }

    /// Makes sure that a node which has refused has made no volume, and that the source is in its place.
    ///
    /// # Errors
    /// Why not, what is where, and what to do.
    async fn expect_not_made(&mut self, name: &Name, order: &AdoptionOrder, why: &str) -> Result<(), String> {
        let look = AdoptionOrder { look: true, ..order.clone() };
        let stays = format!(
            "Claim {name} stays without a PersistentVolume; run the command again when that is mended"
        );
        match self.adopt(&look).await {
            Ok(found) if !found.made && is_in_place(&found, &look) => Ok(()),
            Ok(found) if !found.made => Err(format!("{why}. {}. {stays}", not_seen(&look))),
            Ok(found) if is_in_place(&found, &look) => {
                let where_it_is = whereabouts(&found, &look);
                Err(format!("{why}. Now {where_it_is}. {stays}, or go back to what it had (--give-up)"))
            }
            Ok(found) => Err(format!("{why}. Now {}. {stays}", whereabouts(&found, &look))),
            Err(unknown) => Err(format!("{why}. Whether a volume was made is not known: {unknown}. {stays}")),
        }
    }

    /// Creates a PersistentVolume of the claim.
    pub(super) async fn create(&mut self, seen: &Seen, volume: &Value) -> Result<Step, String> {
        match self.objects()?.create_volume(volume, Run::Real).await {
            Ok(_) => Ok(Step::Next),
            Err(error) if is_outdated(&error) => Ok(Step::Next),
            Err(error) => Err(format!(
                "create PersistentVolume {}: {}; run the command again",
                seen.volume_name,
                failed(error)
            )),
        }
    }

    /// A pod that was scheduled before the claim was Lost may still run.
    async fn expect_no_pods_running(&mut self, name: &Name) -> Result<(), String> {
        self.expect_no_pods(name).await.map_err(|why| format!("{why}, and run the command again"))
    }
}
