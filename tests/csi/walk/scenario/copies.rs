//! The scenarios of snapshots, groups, volumes made from others, and changes of a volume's parameters.

use super::*;

/// Volumes with one of these are at rest: their copies are not held back.
const AT_REST: bool = false;
/// Or a pod writes to them.
const IN_USE: bool = true;

impl Life {
    /// The volume, and what was written to it after it was cut.
    fn source(&self, in_use: bool, cut: Option<Call>) -> Vec<Act> {
        let mut acts = self.in_use();
        if let Some(cut) = cut {
            acts.extend([Act::Call(cut), Act::Write(self.id.clone())]);
        }
        if !in_use {
            acts.push(Act::Call(Call::unpublish(&self.id, POD)));
            acts.push(Act::Call(Call::unstage(&self.id)));
        }
        acts
    }

    fn scenario(&self, what: &str, before: Vec<Act>, call: Call) -> Scenario {
        let scenario = Scenario::new(format!("{}: {what}", self.name()), before, call);
        match self.spec {
            Spec { limited: Some(_), .. } => scenario.with_limits(),
            Spec { sharing: true, .. } => scenario.with_sharing(),
            _ => scenario,
        }
    }

    fn cut(&self) -> Call {
        Call::snapshot(SNAPSHOT, &self.id)
    }

    /// CreateSnapshot.
    fn snapshot(&self, in_use: bool) -> Scenario {
        let what = if in_use { "snapshot in use" } else { "snapshot" };
        self.scenario(what, self.source(in_use, None), self.cut())
    }

    /// The volume's snapshot, taken where it can be.
    fn cut_source(&self, in_use: bool) -> Vec<Act> {
        match self.spec.kind {
            Kind::Directory if self.spec.limited == Some(QGROUPS) => self.source(in_use, Some(self.cut())),
            Kind::Block | Kind::Directory => {
                let mut acts = self.source(AT_REST, None);
                acts.push(Act::Call(self.cut()));
                acts
            }
            _ => self.source(in_use, Some(self.cut())),
        }
    }

    fn delete_snapshot(&self) -> Scenario {
        let call = Call::delete_snapshot(&snapshot_id_of(SNAPSHOT));
        self.scenario("delete snapshot", self.cut_source(IN_USE), call)
    }

    fn restored(&self, spec: Spec) -> Call {
        Call::create_from(spec, COPY, &MadeFrom::Snapshot(snapshot_id_of(SNAPSHOT)))
    }

    fn restore(&self, larger: bool) -> Scenario {
        let spec = if larger { self.spec.grown() } else { self.spec };
        let what = if larger { "restore larger" } else { "restore" };
        self.scenario(what, self.cut_source(AT_REST), self.restored(spec))
    }

    fn clone_of(&self, in_use: bool, larger: bool) -> Scenario {
        let spec = if larger { self.spec.grown() } else { self.spec };
        let what =
            format!("clone{}{}", if in_use { " in use" } else { "" }, if larger { " larger" } else { "" });
        let call = Call::create_from(spec, COPY, &MadeFrom::Volume(self.id.clone()));
        self.scenario(&what, self.source(in_use, None), call)
    }

    /// NodeStageVolume of a restored volume, for the first time, beside its source.
    fn stage_restored(&self) -> Scenario {
        let mut before = self.cut_source(IN_USE);
        let spec = self.spec.grown();
        before.push(Act::Call(self.restored(spec)));
        self.scenario("stage restored", before, Call::stage(&id_of(COPY), spec))
    }

    /// CreateVolumeGroupSnapshot of two volumes in use.
    fn group(&self) -> Scenario {
        let call = Call::group(GROUP, &[&self.id, &other()]);
        self.scenario("group", self.source(IN_USE, None), call)
    }

    fn delete_group(&self) -> Scenario {
        let call = Call::group(GROUP, &[&self.id, &other()]);
        self.scenario(
            "delete group",
            self.source(IN_USE, Some(call)),
            Call::delete_group(&group_id_of(GROUP)),
        )
    }

    fn modify(&self, in_use: bool, parameters: &[(&str, &str)]) -> Scenario {
        let named: Vec<String> = parameters.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let what = format!("modify{} {}", if in_use { " in use" } else { "" }, named.join(" "));
        self.scenario(&what, self.source(in_use, None), Call::modify(&self.id, parameters))
    }

    /// A volume whose blocks a snapshot has as well becomes thick.
    fn modify_shared(&self) -> Scenario {
        let call = Call::modify(&self.id, &[("provisioning", "thick")]);
        self.scenario("modify shared", self.source(IN_USE, Some(self.cut())), call)
    }
}

pub(super) fn all() -> Vec<Scenario> {
    let new = |kind| life(Spec::new(kind));
    let sharing = |kind| life(Spec::sharing(kind));
    let (ext4, xfs, btrfs) = (new(Kind::Ext4), new(Kind::Xfs), new(Kind::Btrfs));
    let (block, directory) = (new(Kind::Block), new(Kind::Directory));
    let thick = life(Spec::thick(Kind::Ext4));
    let [limited, on_ext4] = [0, 1].map(|number| life(Spec::limited(number)));
    let subvolume = life(Spec::limited(QGROUPS));
    let all_at_once = [("provisioning", "thick"), ("directIO", "false"), ("discard", "false")];
    vec![
        ext4.snapshot(IN_USE),
        ext4.snapshot(IN_USE).in_container(),
        ext4.snapshot(AT_REST),
        xfs.snapshot(IN_USE),
        btrfs.snapshot(IN_USE).brief(),
        block.snapshot(AT_REST),
        directory.snapshot(AT_REST),
        sharing(Kind::Ext4).snapshot(IN_USE),
        sharing(Kind::Block).snapshot(IN_USE),
        sharing(Kind::Directory).snapshot(AT_REST).brief(),
        ext4.delete_snapshot(),
        directory.delete_snapshot(),
        ext4.restore(false),
        block.restore(true).brief(),
        directory.restore(false),
        sharing(Kind::Btrfs).restore(true),
        ext4.clone_of(IN_USE, false),
        xfs.clone_of(IN_USE, true).brief(),
        directory.clone_of(AT_REST, false),
        sharing(Kind::Block).clone_of(IN_USE, true).brief(),
        ext4.stage_restored(),
        xfs.stage_restored(),
        btrfs.stage_restored(),
        ext4.group().brief(),
        ext4.group().in_container(),
        sharing(Kind::Block).group().brief(),
        ext4.delete_group(),
        ext4.modify(IN_USE, &all_at_once),
        block.modify(AT_REST, &[("provisioning", "thick")]),
        thick.modify(IN_USE, &[("provisioning", "thin"), ("directIO", "false")]),
        xfs.modify(IN_USE, &[("discard", "false")]),
        sharing(Kind::Ext4).modify_shared(),
        limited.snapshot(AT_REST).brief(),
        limited.restore(false),
        limited.restore(true).brief(),
        limited.clone_of(AT_REST, false),
        on_ext4.clone_of(AT_REST, true).brief(),
        subvolume.snapshot(IN_USE),
        subvolume.delete_snapshot(),
        subvolume.restore(false).brief(),
        subvolume.restore(true),
        subvolume.clone_of(IN_USE, false),
        subvolume.group().brief(),
    ]
}
