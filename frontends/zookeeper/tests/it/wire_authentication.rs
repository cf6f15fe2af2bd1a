//! Authentications on the wire, as ZooKeeper 3.9.5 reads and answers them.

use coordination::{
    Error,
    model::{Identity, Request, Response},
};
use zookeeper_frontend::{
    authentication::Authentication, conversation::Conversation, framing::Frames,
    jute::request::Fault,
};

use crate::drive::conversation;
use crate::requests::{buffer, frame, int, string};
use crate::wire::Wire;

/// The frame of an authentication.
fn authentication(scheme: &[u8], proof: &[u8]) -> Vec<u8> {
    frame(&[&int(-4), &int(100), &int(0), scheme, proof].concat())
}

/// Point 15: the answers have zxid zero.
#[test]
fn a_proof_is_accepted_and_the_conversation_goes_on() {
    let mut wire = Wire::new();
    let proof = authentication(&string("digest"), &string("user:password"));
    let asked = wire.ask(&[proof, frame(&[int(1), int(107)].concat())].concat());
    let identity = Identity {
        scheme: "digest".into(),
        id: "user:tpUq/4Pn5A64fVZyQ0gOJ8ZWqkY=".into(),
    };
    assert_eq!(
        asked,
        [
            (-4, Request::Authenticate(vec![identity])),
            (1, Request::WhoAmI)
        ]
    );
    assert_eq!(
        wire.answer(-4, 3, Ok(Response::Authenticated)),
        b"\0\0\0\x10\xff\xff\xff\xfc\0\0\0\0\0\0\0\0\0\0\0\0"
    );
    assert!(!wire.conversation.is_ending());
}

/// Point 15: then the connection closes.
#[test]
fn an_authentication_that_fails_ends_the_conversation() {
    for (scheme, proof) in [
        (string("digest"), buffer(None)),
        (buffer(None), string("user:password")),
        (string("sasl"), string("user:password")),
    ] {
        let mut wire = Wire::new();
        let asked = wire.ask(&authentication(&scheme, &proof));
        assert_eq!(asked, [(-4, Request::Refuse(Error::AuthenticationFailed))]);
        assert_eq!(
            wire.answer(-4, 3, Err(Error::AuthenticationFailed)),
            b"\0\0\0\x10\xff\xff\xff\xfc\0\0\0\0\0\0\0\0\xff\xff\xff\x8d"
        );
        assert!(wire.conversation.is_over());
    }
}

#[test]
fn an_authentication_that_does_not_decode_gets_no_answer() {
    let whole = authentication(&string("digest"), &string("user:password"));
    for length in 8..whole.len() - 4 {
        let mut frames = Frames::new(1 << 20);
        frames
            .space()
            .extend_from_slice(&frame(&whole[4..4 + length]));
        let mut conversation = conversation();
        assert!(conversation.next_request(&mut frames).is_err(), "{length}");
        assert!(conversation.is_over());
    }
}

/// As in ZooKeeper, every request but an authentication.
#[test]
fn a_request_before_a_required_proof_ends_the_conversation() {
    let required = || {
        let peer = Authentication::new([127, 0, 0, 1].into(), None, None, None, true);
        Wire {
            conversation: Conversation::new(peer),
            ..Wire::new()
        }
    };
    let bodies = [
        (11, vec![]),
        (-11, vec![]),
        (4242, vec![]),
        (2, [string("/x"), int(-1)].concat()),
        (14, vec![]),
    ];
    for (opcode, body) in bodies {
        let mut wire = required();
        let asked = wire.ask(&frame(&[int(7), int(opcode), body].concat()));
        let refusal = Request::Refuse(Error::AuthenticationRequired);
        assert_eq!(asked, [(7, refusal)], "{opcode}");
        let fault = wire.conversation.take_fault();
        assert_eq!(fault, Some(Fault::Unauthenticated));
        assert_eq!(
            wire.answer(7, 3, Err(Error::AuthenticationRequired)),
            b"\0\0\0\x10\0\0\0\x07\0\0\0\0\0\0\0\0\xff\xff\xff\x84"
        );
        assert!(wire.conversation.is_over());
    }
    let mut wire = required();
    let proof = authentication(&string("digest"), &string("user:password"));
    wire.ask(&proof);
    let ping = frame(&[int(-2), int(11)].concat());
    assert_eq!(wire.ask(&ping), [(-2, Request::Ping)]);
}
