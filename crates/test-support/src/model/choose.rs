//! What a client does next.

use super::Kind;
use super::call::{Call, From, Mode, Wanted};
use super::client::{Client, FINE};
use super::rpc::{Caller, IMPOSSIBLE};

impl Client<'_> {
    /// The next call.
    pub(super) fn choose(&mut self) -> Call {
        let count = self.all.count();
        let setup = &self.all.setup;
        let random = &mut self.random;
        let v = random.below(setup.volumes.len());
        // Volumes come and go in turns: where all clients wanted all at once, nothing would get far.
        let goes = (count / 250 + v).is_multiple_of(3);
        let pod = random.below(setup.pods);
        match random.below(100) {
            0..45 => self.use_volume(v, pod, goes),
            45..53 => self.strange(v, pod),
            53..60 => random.of(&[Call::Get(v), Call::Stats { v, pod }, Call::Validate { v, wanted: FINE }]),
            60..66 => Call::Read { v, pod },
            66..70 => Call::ListVolumes(random.of(&[0, 1, 3])),
            70..73 => Call::ListSnapshots(random.of(&[0, 1, 2])),
            73..87 => self.of_snapshots(v),
            87..92 => self.of_groups(v),
            92..95 => {
                let number = self.client * 10_000_000 + random.below(10_000_000);
                Call::Probe { number, from: self.source() }
            }
            95..98 => Call::Other(random.below(Caller::OTHERS)),
            _ => Call::Invalid(random.below(Caller::INVALID)),
        }
    }

    /// A step of a volume's life, as Kubernetes would take it.
    fn use_volume(&mut self, v: usize, pod: usize, goes: bool) -> Call {
        let setup = &self.all.setup;
        let random = &mut self.random;
        let bytes = setup.volumes[v].bytes;
        let up = [
            Call::Create { v, bytes, limit: 0, thick: false, from: None, wanted: FINE },
            Call::Attach { v, read_only: false, wanted: FINE },
            Call::Stage { v, wanted: FINE },
            Call::Publish { v, pod: 0, read_only: false, wanted: FINE },
            Call::Publish { v, pod, read_only: false, wanted: Wanted { mode: Mode::MultiWriter, ..FINE } },
            Call::Write { v, pod, value: 1 + random.below(999_999_999) as u32 },
            Call::Write { v, pod: 0, value: 1 + random.below(999_999_999) as u32 },
            Call::Expand { v, bytes: bytes + setup.step * random.below(4) as u64, limit: 0 },
            Call::NodeExpand { v, pod, bytes: bytes + setup.step * random.below(3) as u64 },
        ];
        let down = [
            Call::Unpublish { v, pod },
            Call::Unpublish { v, pod: 0 },
            Call::Unstage(v),
            Call::Detach { v, other_node: false },
            Call::Delete(v),
        ];
        match random.percent(if goes { 90 } else { 8 }) {
            true => random.of(&down),
            false => random.of(&up),
        }
    }

    /// What no sidecar asks for in this way.
    fn strange(&mut self, v: usize, pod: usize) -> Call {
        let from = self.source();
        let setup = &self.all.setup;
        let random = &mut self.random;
        let (bytes, kind) = (setup.volumes[v].bytes, setup.volumes[v].kind);
        let mode = random.of(&[Mode::Writer, Mode::Reader, Mode::MultiWriter, Mode::MultiNode]);
        let wanted = Wanted { mode, other_access: random.percent(20) };
        let read_only = random.percent(50);
        let thick = kind != Kind::Directory && random.percent(50);
        let mode_only = Wanted { mode, other_access: false };
        let from = Some(from).filter(|from| *from != From::Volume(v));
        let step = setup.step;
        random.of(&[
            Call::Create { v, bytes, limit: bytes, thick: false, from: None, wanted: mode_only },
            Call::Create { v, bytes: bytes + step, limit: 0, thick, from: None, wanted: FINE },
            Call::Create { v, bytes: bytes + 3 * step, limit: 0, thick: false, from, wanted: FINE },
            Call::Create {
                v,
                bytes: IMPOSSIBLE[usize::from(thick)],
                limit: 0,
                thick: false,
                from: None,
                wanted: FINE,
            },
            Call::Attach {
                v,
                read_only: read_only && kind != Kind::Block,
                wanted: Self::for_device(kind, wanted),
            },
            Call::Detach { v, other_node: true },
            Call::Stage { v, wanted: Self::for_device(kind, wanted) },
            Call::Publish {
                v,
                pod,
                read_only: read_only && kind != Kind::Block,
                wanted: Self::for_device(kind, wanted),
            },
            Call::Expand { v, bytes: IMPOSSIBLE[usize::from(thick)], limit: 0 },
            Call::Expand { v, bytes, limit: bytes },
            Call::Modify { v, thick: Some(thick), direct_io: None },
            Call::Modify { v, thick: None, direct_io: Some(read_only) },
            Call::Validate { v, wanted },
        ])
    }

    /// A raw device is not published in other ways here.
    fn for_device(kind: Kind, wanted: Wanted) -> Wanted {
        if kind == Kind::Block && wanted.mode == Mode::Reader { FINE } else { wanted }
    }

    fn source(&mut self) -> From {
        let setup = &self.all.setup;
        let random = &mut self.random;
        match random.below(5) {
            0 | 1 => From::Volume(random.below(setup.volumes.len())),
            2 | 3 => From::Snapshot(random.below(setup.snapshots)),
            _ => From::Member(random.below(setup.groups), random.below(setup.volumes.len())),
        }
    }

    fn of_snapshots(&mut self, v: usize) -> Call {
        let s = self.random.below(self.all.setup.snapshots);
        match self.random.below(10) {
            0..5 => Call::Snapshot { s, v },
            5..8 => Call::DeleteSnapshot(s),
            _ => Call::GetSnapshot(s),
        }
    }

    fn of_groups(&mut self, v: usize) -> Call {
        let setup = &self.all.setup;
        let random = &mut self.random;
        let g = random.below(setup.groups);
        let other = (v + 1 + random.below(setup.volumes.len() - 1)) % setup.volumes.len();
        let wrong_members = random.percent(20);
        match random.below(10) {
            0..4 => Call::Group { g, volumes: [v.min(other), v.max(other)] },
            4..6 => Call::DeleteGroup { g, wrong_members },
            6..8 => Call::GetGroup { g, wrong_members },
            8 => Call::GetMember { g, v },
            _ => Call::DeleteMember { g, v },
        }
    }
}
