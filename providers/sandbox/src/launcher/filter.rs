//! The system call filter: calls that functions do not need and attackers do fail as not permitted.
//!
//! It lists refused calls, not allowed ones, because functions bring runtimes of all kinds. It
//! refuses new namespaces (in which a function would regain rights), other processes' memory, and
//! the kernel parts with the most faults.

use std::{collections::BTreeMap, io, mem};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter, sock_filter,
};

const REFUSED: [libc::c_long; 39] = [
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// Every flag of `clone` that makes a namespace.
const NEW_NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

/// The socket families that functions use. The others bypass the network namespace (`AF_VSOCK`
/// reaches the host of a virtual machine from any namespace), or serve attackers alone.
const FAMILIES: [i32; 4] = [
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];

pub(super) fn install() -> io::Result<()> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    // One rule for each flag: any of them is refused.
    let flags = (0..64)
        .map(|bit| 1_u64 << bit)
        .filter(|flag| NEW_NAMESPACES & flag != 0);
    let clones = flags.map(|flag| {
        let is_set = SeccompCmpOp::MaskedEq(flag);
        let condition = SeccompCondition::new(0, SeccompCmpArgLen::Qword, is_set, flag)
            .map_err(io::Error::other)?;
        SeccompRule::new(vec![condition]).map_err(io::Error::other)
    });
    rules.insert(libc::SYS_clone, clones.collect::<io::Result<_>>()?);
    let others = FAMILIES.map(|family| {
        SeccompCondition::new(
            0,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::Ne,
            family.cast_unsigned().into(),
        )
    });
    let others = others
        .into_iter()
        .collect::<Result<Vec<_>, _>>()
        .map_err(io::Error::other)?;
    rules.insert(
        libc::SYS_socket,
        vec![SeccompRule::new(others).map_err(io::Error::other)?],
    );
    apply(rules, libc::EPERM)?;
    // Its flags are in memory, where no filter sees them. A caller that gets "no such call" uses
    // `clone` instead.
    apply([(libc::SYS_clone3, Vec::new())].into(), libc::ENOSYS)?;
    if cfg!(target_arch = "x86_64") {
        refuse_x32()
    } else {
        Ok(())
    }
}

/// The bit by which the x32 number of a call differs from its x86-64 number: the kernel's
/// `__X32_SYSCALL_BIT`.
const X32: u32 = 0x4000_0000;

/// Refuses the x32 numbers. A kernel with x32 accepts each call under two numbers of the same
/// architecture, and filters compare with one.
fn refuse_x32() -> io::Result<()> {
    let instruction = |code: u32, (jt, jf), k| sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let program = [
        instruction(
            libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
            (0, 0),
            NUMBER_AT,
        ),
        instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, (0, 1), X32),
        instruction(libc::BPF_RET | libc::BPF_K, (0, 0), refuse),
        instruction(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ALLOW),
    ];
    apply_filter(&program).map_err(io::Error::other)
}

const NUMBER_AT: u32 = mem::offset_of!(libc::seccomp_data, nr) as u32;

fn apply(rules: BTreeMap<i64, Vec<SeccompRule>>, errno: i32) -> io::Result<()> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let refuse = SeccompAction::Errno(errno as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture)
        .map_err(io::Error::other)?;
    let program: BpfProgram = filter.try_into().map_err(io::Error::other)?;
    apply_filter(&program).map_err(io::Error::other)
}
