/*
 * Peer - run a command while holding a lock of zklock's, with Apache Curator.
 *
 *		java -cp '/usr/share/java/*' Peer.java HOSTS LOCK COMMAND [ARGUMENT...]
 *		java -cp '/usr/share/java/*' Peer.java zk1:2181,zk2:2181,zk3:2181 billing/nightly /usr/local/bin/nightly
 *
 * Waits for the lock, among the backends that want it. zklock's mode 'exclusive' is Curator's InterProcessMutex,
 * 'read' and 'write' are its InterProcessReadWriteLock: use one of the two kinds for a path.
 *
 * Curator does not tell a holder that its lock is gone. What it does tell is that it has no connection: then the
 * command is ended, since ZooKeeper may give the lock away when the session timeout is over. A command that
 * writes to a database had better present the fencing token, $ZK_FENCING_TOKEN, there: see doc/fencing.md.
 *
 * Exit code: that of the command; 75 when the lock was lost on the way.
 * With zklock.acl = creator, build the client with .authorization("digest", "user:password".getBytes()) and an
 * ACLProvider that returns ZooDefs.Ids.CREATOR_ALL_ACL.
 *
 * Debian: libcurator-recipes-java and default-jdk-headless.
 */
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

public class Peer
{
	/* The path of the holder's node is for subclasses. */
	static class Mutex extends InterProcessMutex
	{
		Mutex(CuratorFramework client, String path)
		{
			super(client, path);
		}

		String node()
		{
			return getLockPath();
		}
	}

	public static void main(String[] args) throws Exception
	{
		CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], 10000, 5000, new ExponentialBackoffRetry(100, 10));
		List<String> command = Arrays.asList(args).subList(2, args.length);
		AtomicReference<Process> running = new AtomicReference<>();
		AtomicBoolean lost = new AtomicBoolean();

		client.getConnectionStateListenable().addListener((c, state) -> {
			Process process = running.get();
			if (!state.isConnected() && process != null)
			{
				lost.set(true);
				process.destroy();
			}
		});
		client.start();

		Mutex mutex = new Mutex(client, "/zklock/" + args[1]);
		mutex.acquire();
		long token = client.checkExists().forPath(mutex.node()).getCzxid();
		ProcessBuilder builder = new ProcessBuilder(command).inheritIO();
		builder.environment().put("ZK_FENCING_TOKEN", Long.toString(token));
		running.set(builder.start());
		int code = running.get().waitFor();
		running.set(null);
		if (lost.get())
			Runtime.getRuntime().halt(75);	/* the session's end gives back what is left */
		mutex.release();
		client.close();
		System.exit(code);
	}
}
