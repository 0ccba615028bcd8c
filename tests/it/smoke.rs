use crate::support::{shared_hosts, unique_base};
use zklock::*;

#[test]
fn smoke() {
    let _ = env_logger::try_init();
    let zk = Client::builder(shared_hosts()).session_timeout(std::time::Duration::from_secs(4)).connect().unwrap();
    println!("{zk:?}");
    let base = unique_base("smoke");
    let lock = DistributedLock::new(&zk, &base, "a");
    let t = std::time::Instant::now();
    for _ in 0..100 {
        let guard = lock.lock().unwrap();
        assert!(guard.is_held());
        drop(guard);
    }
    println!("{:?} each", t.elapsed() / 100);
    let guard = lock.try_lock().unwrap().unwrap();
    println!("{guard:?} {:?}", lock.contenders());
    assert!(lock.try_lock().unwrap().is_none());
    let t = std::time::Instant::now();
    assert!(lock.try_lock_for(std::time::Duration::from_millis(200)).unwrap().is_none());
    println!("{:?}", t.elapsed());
    guard.ensure_held().unwrap();
    guard.unlock().unwrap();
    assert!(lock.contenders().unwrap().is_empty());
    let handles: Vec<_> = (0..4).map(|_| {
        let lock = lock.clone();
        std::thread::spawn(move || for _ in 0..50 { let g = lock.lock().unwrap(); assert!(g.is_held()); })
    }).collect();
    for h in handles { h.join().unwrap(); }
    println!("{zk:?}");
}
