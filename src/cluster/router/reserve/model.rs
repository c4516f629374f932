//! Every order in which the steps of several controllers, which may die after any step, can reach several nodes.

use std::collections::HashSet;

use super::{Decision, Found, decide};

/// As many moves as it takes that both have been everywhere.
const MOVES: u8 = 2;

/// A node: the reservation that lives there, how many there were, and whether it has the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Node {
    token: u8,
    last: u8,
    made: bool,
}

impl Node {
    fn found(self) -> Found {
        match self {
            Node { made: true, .. } => Found::Held,
            Node { token: 0, .. } => Found::Nothing,
            Node { .. } => Found::Reserved,
        }
    }

    /// As `Driver::reserve_name`; 0 where the volume is there.
    fn reserve(&mut self) -> u8 {
        if self.made {
            return 0;
        }
        if self.token == 0 {
            self.last += 1;
            self.token = self.last;
        }
        self.token
    }

    fn release(&mut self) -> Found {
        self.token = 0;
        self.found()
    }

    /// As CreateVolume with a token: whether the volume is there afterwards.
    fn create(&mut self, token: u8) -> bool {
        if !self.made && token != 0 && self.token == token {
            *self = Node { made: true, token: 0, ..*self };
        }
        self.made
    }
}

/// Where a controller is; each is one message to one node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Step {
    Reserve,
    /// Asks the node with this number, with what the ones before have told.
    Look(usize, Vec<(usize, Found)>),
    /// Takes these back.
    TakeBack(Vec<usize>),
    /// Gives way.
    Release(usize),
    Create,
    /// Was told that the volume is there; `None` for try again, or the end of the process.
    Done(Option<usize>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Controller {
    at: usize,
    token: u8,
    moves: u8,
    step: Step,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    nodes: Vec<Node>,
    controllers: Vec<Controller>,
    /// Reservations that may still end by their time.
    ends: u8,
}

impl World {
    /// The next step of one controller, as [`super::Round`] has them.
    fn step(&mut self, number: usize) {
        let World { nodes, controllers, .. } = self;
        let count = nodes.len();
        let Controller { at, token, moves, step } = &mut controllers[number];
        let next = |from: usize, at: usize| (from..count).find(|node| *node != at);
        let after_look = |at: usize, told: &[(usize, Found)]| match decide(&at, told) {
            Decision::Elsewhere(other) | Decision::Follow(other) => Step::Release(other),
            Decision::Make(others) if others.is_empty() => Step::Create,
            Decision::Make(others) => Step::TakeBack(others),
        };
        *step = match step.clone() {
            Step::Reserve => {
                *token = nodes[*at].reserve();
                match next(0, *at) {
                    Some(first) if *token != 0 => Step::Look(first, Vec::new()),
                    _ => Step::Create,
                }
            }
            Step::Look(node, mut told) => {
                told.push((node, nodes[node].found()));
                match next(node + 1, *at) {
                    Some(node) => Step::Look(node, told),
                    None => after_look(*at, &told),
                }
            }
            Step::TakeBack(mut others) => {
                let other = others.remove(0);
                match (nodes[other].release(), others.is_empty()) {
                    (Found::Held, _) => Step::Release(other),
                    (_, true) => Step::Create,
                    (_, false) => Step::TakeBack(others),
                }
            }
            Step::Release(other) => {
                nodes[*at].release();
                (*at, *moves) = (other, *moves + 1);
                if *moves < MOVES { Step::Reserve } else { Step::Done(None) }
            }
            Step::Create => Step::Done(nodes[*at].create(*token).then_some(*at)),
            done @ Step::Done(_) => done,
        };
        if matches!(step, Step::Done(_)) {
            (*at, *token, *moves) = (0, 0, 0); // no difference any more
        }
    }

    fn is_done(&self, number: usize) -> bool {
        matches!(self.controllers[number].step, Step::Done(_))
    }
}

fn next_is_create(world: &World, number: usize) -> bool {
    world.controllers[number].step == Step::Create
}

/// Whatever comes next, in every order. Returns how many worlds there are.
fn explore(first: World) -> usize {
    let (mut seen, mut open) = (HashSet::new(), vec![first]);
    while let Some(world) = open.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        let made: Vec<usize> = (0..world.nodes.len()).filter(|node| world.nodes[*node].made).collect();
        assert!(made.len() <= 1, "two volumes: {world:?}");
        let told = world.controllers.iter().filter_map(|controller| match controller.step {
            Step::Done(told) => told,
            _ => None,
        });
        assert!(told.into_iter().all(|node| made == [node]), "what was answered is there: {world:?}");
        for number in 0..world.controllers.len() {
            if world.is_done(number) {
                continue;
            }
            let mut next = world.clone();
            next.step(number);
            open.push(next);
            // There is no room, and the next candidate is tried.
            if next_is_create(&world, number) {
                let mut next = world.clone();
                let (nodes, controller) = (world.nodes.len(), &mut next.controllers[number]);
                let node = &mut next.nodes[controller.at];
                if node.token == controller.token && controller.moves < MOVES && !node.made {
                    node.token = 0;
                    let at = (controller.at + 1) % nodes;
                    let moves = controller.moves + 1;
                    *controller = Controller { at, token: 0, moves, step: Step::Reserve };
                    open.push(next);
                }
            }
            // It dies here.
            let mut next = world.clone();
            next.controllers[number] = Controller { at: 0, token: 0, moves: 0, step: Step::Done(None) };
            open.push(next);
        }
        // A reservation is over, or its node has a new process.
        for node in 0..world.nodes.len() {
            if world.ends > 0 && world.nodes[node].token != 0 {
                let mut next = world.clone();
                next.nodes[node].token = 0;
                next.ends -= 1;
                open.push(next);
            }
        }
    }
    seen.len()
}

fn world(nodes: usize, choices: &[usize], ends: u8) -> World {
    let controller = |at: &usize| Controller { at: *at, token: 0, moves: 0, step: Step::Reserve };
    let controllers = choices.iter().map(controller).collect();
    World { nodes: vec![Node::default(); nodes], controllers, ends }
}

#[test]
fn two_controllers_make_one_volume_in_any_order() {
    let mut worlds = 0;
    for (one, other) in [(0, 0), (0, 1), (1, 0), (1, 2), (2, 1), (2, 0)] {
        worlds += explore(world(3, &[one, other], 1));
    }
    assert!(worlds > 1_000, "{worlds}");
}

#[test]
fn three_controllers_make_one_volume_in_any_order() {
    let worlds = explore(world(2, &[0, 1, 1], 0));
    assert!(worlds > 1_000, "{worlds}");
}

/// Nobody disturbs, nobody dies: whoever comes later is told of the volume that is there.
#[test]
fn controllers_in_turn_are_told_of_one_volume() {
    for (one, other) in [(0, 1), (1, 0), (2, 2), (0, 2)] {
        let mut world = world(3, &[one, other], 0);
        for number in [0, 1] {
            while !world.is_done(number) {
                world.step(number);
            }
            assert_eq!(world.controllers[number].step, Step::Done(Some(one)));
        }
    }
}

/// The test of the test: without the look after the reservation there are two.
#[test]
#[should_panic(expected = "two volumes")]
fn a_reservation_without_a_second_look_is_made_twice() {
    let mut world = world(2, &[0, 1], 0);
    for number in [0, 1] {
        world.step(number);
        world.controllers[number].step = Step::Create;
    }
    explore(world);
}
