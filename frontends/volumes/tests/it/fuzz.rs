//! Random bytes, in bounded time: the decoders never panic.

use bytes::BytesMut;
use volumes_frontend::{frames, wire::FORMAT};

use crate::{
    drive::{drive, drive_stream},
    wire::{answers, requests},
};

const SEEDS: u64 = 300;

fn bodies() -> Vec<Vec<u8>> {
    let requests = requests()
        .into_iter()
        .map(|request| FORMAT.encode(&request, 0).to_vec());
    let answers = answers()
        .into_iter()
        .map(|answer| FORMAT.encode(&answer, 0).to_vec());
    requests.chain(answers).collect()
}

#[test]
fn changed_bytes_of_every_message_lead_to_a_message_or_an_error() {
    for seed in 0..SEEDS {
        let mut random = fastrand::Rng::with_seed(seed);
        for mut body in bodies() {
            drive(&body);
            for _ in 0..random.usize(0..4) {
                let place = random.usize(..body.len());
                body[place] = random.u8(..);
            }
            body.truncate(random.usize(..=body.len()));
            drive(&body);
        }
    }
}

#[test]
fn random_bodies_and_streams_lead_to_a_message_or_an_error() {
    for seed in 0..SEEDS * 10 {
        let mut random = fastrand::Rng::with_seed(seed);
        let byte = |random: &mut fastrand::Rng| match random.u8(..4) {
            0 => random.u8(..),
            // Mostly small numbers, which pass more checks.
            _ => random.u8(..20),
        };
        let length = random.usize(..200);
        let mut body: Vec<u8> = (0..length).map(|_| byte(&mut random)).collect();
        drive_stream(&body);
        body.insert(0, 1);
        drive(&body);
        let mut stream = BytesMut::new();
        assert!(frames::put(&mut stream, random.u64(..), &body, 1 << 20));
        let place = random.usize(..stream.len());
        stream[place] = random.u8(..);
        drive_stream(&stream);
    }
}
