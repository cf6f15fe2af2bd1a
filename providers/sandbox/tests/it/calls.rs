//! The system calls that a function is refused.

use sandbox::process::Enforcement;

use crate::processes::{block_on, world};

/// Answers how the call with this number, which would create a namespace, fails.
const CALLS: &str = "
import ctypes, errno

libc = ctypes.CDLL(None, use_errno=True)

def handler(number, context):
    NEW_NAMESPACES_OF_USERS = 0x10000000
    if libc.syscall(ctypes.c_long(number), ctypes.c_long(NEW_NAMESPACES_OF_USERS)) == 0:
        return 'allowed'
    return errno.errorcode[ctypes.get_errno()]
";

/// Only the numbers of x86-64 were refused. A kernel with x32 accepts each call under another
/// number too.
#[test]
fn a_call_is_refused_by_each_of_its_numbers() {
    block_on(async {
        let world = world(|_| Enforcement::nothing());
        let function = world.function("calls", CALLS, |_| {}).await;
        let unshare = libc::SYS_unshare;
        assert_eq!(
            world.said(&function, &unshare.to_string()).await,
            r#""EPERM""#
        );
        if cfg!(target_arch = "x86_64") {
            let by_x32 = 0x4000_0000 | unshare;
            assert_eq!(
                world.said(&function, &by_x32.to_string()).await,
                r#""EPERM""#
            );
        }
        world.close().await;
    });
}
