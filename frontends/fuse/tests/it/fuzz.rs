//! Random bytes, in bounded time: the decoder never panics.

use fuse_frontend::wire::{Fault, Request};

use crate::{
    drive::{drive, drive_raw, message},
    wire::samples,
};

const SEEDS: u64 = 200;

#[test]
fn every_truncation_of_every_request_is_a_fault() {
    for (opcode, body) in samples() {
        for length in 0..body.len() {
            drive(opcode, &body[..length]);
            let cut = message(opcode, &body[..length]);
            let (_, request) = Request::decode(&cut).expect("the header is right");
            assert!(
                request.is_err(),
                "opcode {opcode}, {length} bytes: {request:?}"
            );
        }
        let full = message(opcode, &body);
        for length in 0..full.len() {
            assert!(Request::decode(&full[..length]).is_err(), "opcode {opcode}");
        }
    }
}

#[test]
fn bytes_after_a_request_are_a_fault() {
    for (opcode, body) in samples().into_iter().filter(|(opcode, _)| *opcode != 26) {
        let long = message(opcode, &[&body[..], &[1]].concat());
        let (_, request) = Request::decode(&long).expect("the header is right");
        assert_eq!(request, Err(Fault::Trailing(1)), "opcode {opcode}");
    }
}

#[test]
fn changed_bytes_of_every_request_lead_to_a_request_or_a_fault() {
    for seed in 0..SEEDS {
        let mut random = fastrand::Rng::with_seed(seed);
        for (opcode, mut body) in samples() {
            for _ in 0..random.usize(0..6) {
                if !body.is_empty() {
                    let place = random.usize(..body.len());
                    body[place] = random.u8(..);
                }
            }
            body.truncate(random.usize(..=body.len()));
            drive(opcode, &body);
            let mut raw = message(opcode, &body);
            let place = random.usize(..raw.len());
            raw[place] = random.u8(..);
            drive_raw(&raw);
        }
    }
}

#[test]
fn random_bodies_of_every_operation_lead_to_a_request_or_a_fault() {
    for seed in 0..SEEDS {
        let mut random = fastrand::Rng::with_seed(seed);
        for opcode in 0..64 {
            let length = random.usize(..160);
            // Mostly small numbers, which pass more checks.
            let byte = |random: &mut fastrand::Rng| match random.u8(..4) {
                0 => random.u8(..),
                1 => b'a',
                _ => random.u8(..3),
            };
            let body: Vec<u8> = (0..length).map(|_| byte(&mut random)).collect();
            drive(opcode, &body);
            drive_raw(&body);
        }
    }
}
