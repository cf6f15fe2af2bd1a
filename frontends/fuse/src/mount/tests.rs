//! How a session answers single messages, over a socket in place of the device.

use std::{io::ErrorKind, os::fd::OwnedFd, os::unix::net::UnixStream};

use parking_lot::Mutex;

use super::*;
use crate::handler::Responder;

/// Keeps the requests that it gets.
#[derive(Default)]
struct Keeper {
    responders: Mutex<Vec<Responder>>,
    forgotten: Mutex<Vec<(u64, u64)>>,
    interrupted: Mutex<Vec<u64>>,
}

impl Handler for Keeper {
    fn handle(&self, _request: Request<'_>, responder: Responder) {
        self.responders.lock().push(responder);
    }

    fn forget(&self, inode: u64, lookups: u64) {
        self.forgotten.lock().push((inode, lookups));
    }

    fn interrupt(&self, unique: u64) {
        self.interrupted.lock().push(unique);
    }
}

struct Fixture {
    session: Session,
    keeper: Arc<Keeper>,
    kernel: UnixStream,
}

const GETATTR: u32 = 3;
const INTERRUPT: u32 = 36;

impl Fixture {
    fn new() -> Self {
        let (kernel, device) = UnixStream::pair().expect("two sockets");
        kernel.set_nonblocking(true).expect("a socket");
        let keeper = Arc::<Keeper>::default();
        let handler: Arc<dyn Handler> = Arc::<Keeper>::clone(&keeper);
        let session = Session {
            connection: Connection::new(fs::File::from(OwnedFd::from(device))),
            alive: Alive::new(&Arc::default(), &handler),
            buffer_bytes: 0,
        };
        let fixture = Self {
            session,
            keeper,
            kernel,
        };
        assert_eq!(fixture.reply(), None);
        fixture
    }

    fn serve(&self, opcode: u32, unique: u64, body: &[u64]) {
        let mut message = Vec::new();
        let length = 40 + 8 * body.len() as u32;
        message.extend(
            [length, opcode]
                .iter()
                .flat_map(|number| number.to_ne_bytes()),
        );
        let numbers = [unique, 1, 0, 0].into_iter().chain(body.iter().copied());
        message.extend(numbers.flat_map(u64::to_ne_bytes));
        self.session.serve(&message);
    }

    /// The number and the error of the next reply, if there is one.
    fn reply(&self) -> Option<(u64, i32)> {
        let mut reply = [0; 16];
        match (&self.kernel).read_exact(&mut reply) {
            Ok(()) => {
                let error = i32::from_ne_bytes(reply[4..8].try_into().expect("4 bytes"));
                let unique = u64::from_ne_bytes(reply[8..].try_into().expect("8 bytes"));
                Some((unique, -error))
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                None
            }
        }
    }
}

#[test]
fn an_interrupt_reaches_the_handler_of_its_request_without_a_reply() {
    let fixture = Fixture::new();
    fixture.serve(GETATTR, 2, &[0, 0]);
    fixture.serve(INTERRUPT, 3, &[2]);
    assert_eq!(fixture.reply(), None);
    assert_eq!(*fixture.keeper.interrupted.lock(), [2]);
    let responder = fixture.keeper.responders.lock().pop().expect("a request");
    assert!(responder.is_interrupted());
    responder.fail(Errno::EINTR);
    assert_eq!(fixture.reply(), Some((2, Errno::EINTR.number())));
}

/// Two threads may read a request and its interrupt, and the interrupt may be served first. ENOSYS
/// would end all interrupts, and silence would lose this one.
#[test]
fn the_kernel_repeats_an_interrupt_that_comes_before_its_request() {
    let fixture = Fixture::new();
    fixture.serve(INTERRUPT, 3, &[2]);
    assert_eq!(fixture.reply(), Some((3, Errno::EAGAIN.number())));
    assert!(fixture.keeper.interrupted.lock().is_empty());
    fixture.serve(GETATTR, 2, &[0, 0]);
    fixture.serve(INTERRUPT, 3, &[2]);
    assert_eq!(*fixture.keeper.interrupted.lock(), [2]);
}

#[test]
fn an_answered_request_is_no_longer_interrupted() {
    let fixture = Fixture::new();
    fixture.serve(GETATTR, 2, &[0, 0]);
    let responder = fixture.keeper.responders.lock().pop().expect("a request");
    responder.send(&Reply::Done);
    assert_eq!(fixture.reply(), Some((2, 0)));
    fixture.serve(INTERRUPT, 3, &[2]);
    assert!(fixture.keeper.interrupted.lock().is_empty());
}

#[test]
fn a_dropped_request_is_answered() {
    let fixture = Fixture::new();
    fixture.serve(GETATTR, 2, &[0, 0]);
    fixture.keeper.responders.lock().clear();
    assert_eq!(fixture.reply(), Some((2, Errno::EIO.number())));
    assert_eq!(fixture.reply(), None, "one reply");
}

#[test]
fn requests_that_no_handler_sees_are_answered_as_the_kernel_expects() {
    let fixture = Fixture::new();
    for (opcode, body, reply) in [
        // POLL and IOCTL are unsupported, a GETATTR is cut short, INIT comes twice, DESTROY.
        (40, &[0_u64; 3][..], Some(Errno::ENOSYS.number())),
        (39, &[0; 4], Some(Errno::ENOSYS.number())),
        (GETATTR, &[0], Some(Errno::EIO.number())),
        (26, &[7 | 45 << 32, 0], Some(Errno::EPROTO.number())),
        (38, &[], Some(0)),
        // FORGET, BATCH_FORGET of one inode, NOTIFY_REPLY: the kernel refuses replies to them.
        (2, &[4], None),
        (42, &[1, 6, 2], None),
        (41, &[0; 5], None),
    ] {
        fixture.serve(opcode, 2, body);
        let expected = reply.map(|error| (2, error));
        assert_eq!(fixture.reply(), expected, "opcode {opcode}");
    }
    assert!(fixture.keeper.responders.lock().is_empty());
    assert_eq!(*fixture.keeper.forgotten.lock(), [(1, 4), (6, 2)]);
    // No header: there is nothing to answer.
    fixture.session.serve(&[1, 2, 3]);
    assert_eq!(fixture.reply(), None);
}
