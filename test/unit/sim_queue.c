/*-------------------------------------------------------------------------
 *
 * sim_queue.c
 *	  A small ensemble in memory, for the queue machine to be tested on.
 *
 * See sim_queue.h.
 *
 * Copyright (c) 2026, zklock developers
 *
 *-------------------------------------------------------------------------
 */
#include "sim_queue.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zookeeper/queue.h"

#define CLIENTS		3
#define MACHINES	4			/* of each client */
#define NODES		64
#define PACKETS		256
#define LEASES		2

typedef struct SimNode
{
	bool		exists;
	char		name[ZKL_NODE_SIZE];
	int64_t		czxid;
	int64_t		deleted;		/* zxid, 0 = not */
	int64_t		owner;
	bool		downgraded;		/* may come late, and then is not granted */
	unsigned	watchers;		/* bit per client */
} SimNode;

/* A request on its way there, or a reply or event on its way back: */
typedef enum PacketKind
{
	REQUEST, REPLY, NODE_GONE, NODE_CHANGED, CHILDREN_CHANGED, CONNECTED, DISCONNECTED, EXPIRED
} PacketKind;

typedef struct Packet
{
	PacketKind	kind;
	bool		sequential;
	int			machine;
	uint32_t	serial;
	uint32_t	op;
	uint32_t	connection;
	char		name[ZKL_NODE_SIZE];
	int			rc;
	int64_t		czxid;
	int64_t		owner;
	int64_t		zxid;			/* state that the reply is of */
	ZklListing	listing;
} Packet;

typedef struct Fifo
{
	Packet	   *packets;
	int			head;
	int			count;
} Fifo;

typedef struct SimMachine
{
	ZklQueue	queue;
	uint32_t	serial;
	bool		active;
	bool		quits;			/* lets go as soon as it may */
	ZklQueueState seen;
	bool		was_granted;
} SimMachine;

typedef struct SimClient
{
	bool		up;				/* connected, as the library knows */
	bool		believes;		/* as the main thread knows */
	uint32_t	connection;		/* the main thread's number */
	int64_t		session;
	bool		expired;		/* at the servers, not told yet */
	Fifo		to_server;
	Fifo		from_server;
	SimMachine	machines[MACHINES];
} SimClient;

static struct
{
	uint64_t	rng;
	int64_t		zxid;
	int64_t		next_digits;
	int64_t		next_session;
	uint64_t	next_uuid;
	Flavour		flavour;
	bool		directory;
	int64_t		pzxid;			/* its latest create or delete */
	int64_t		last_token;		/* of an exclusive or write grant */
	unsigned	child_watchers;
	bool		quiet;			/* no more faults */
	SimNode		nodes[NODES];
	SimClient	clients[CLIENTS];
	SimResult	result;
}			sim;

static uint32_t
random_below(uint32_t n)
{
	/* xorshift64* */
	sim.rng ^= sim.rng >> 12;
	sim.rng ^= sim.rng << 25;
	sim.rng ^= sim.rng >> 27;
	return (uint32_t) ((sim.rng * UINT64_C(2685821657736338717)) >> 33) % n;
}

static void
violation(const char *fmt,...)
{
	va_list		args;

	if (sim.result.violations++ > 0)
		return;
	va_start(args, fmt);
	vsnprintf(sim.result.first_violation, sizeof(sim.result.first_violation), fmt, args);
	va_end(args);
}

static Packet *
push(Fifo *fifo)
{
	Packet	   *packet;

	if (fifo->count == PACKETS)
		abort();				/* far more than the machines can have open */
	packet = &fifo->packets[(fifo->head + fifo->count++) % PACKETS];
	memset(packet, 0, sizeof(*packet));
	return packet;
}

static Packet
pop(Fifo *fifo)
{
	Packet		packet = fifo->packets[fifo->head];

	fifo->head = (fifo->head + 1) % PACKETS;
	fifo->count--;
	return packet;
}

static SimNode *
find_node(const char *name)
{
	for (int i = 0; i < NODES; i++)
		if (sim.nodes[i].exists && strcmp(sim.nodes[i].name, name) == 0)
			return &sim.nodes[i];
	return NULL;
}

/* Tell those who watch the node, or the directory when node is NULL. */
static void
fire(unsigned *watchers, PacketKind kind, const char *name)
{
	for (int c = 0; c < CLIENTS; c++)
	{
		Packet	   *event;

		if ((*watchers & (1u << c)) == 0)
			continue;
		/* a client that is away gets it from SetWatches when it comes back */
		event = push(&sim.clients[c].from_server);
		event->kind = kind;
		event->zxid = sim.zxid;
		if (name != NULL)
			strcpy(event->name, name);
	}
	*watchers = 0;
}

/* "sequential": the directory's counter is appended, which each create moves. */
static SimNode *
create_node(const char *prefix, bool sequential, int64_t owner)
{
	for (int i = 0; i < NODES; i++)
	{
		SimNode    *node = &sim.nodes[i];

		if (node->exists)
			continue;
		memset(node, 0, sizeof(*node));
		node->exists = true;
		if (sequential)
			snprintf(node->name, sizeof(node->name), "%s%010" PRId64, prefix, sim.next_digits);
		else
			strcpy(node->name, prefix);
		sim.next_digits++;
		node->downgraded = !sequential;
		node->czxid = sim.pzxid = ++sim.zxid;
		node->owner = owner;
		fire(&sim.child_watchers, CHILDREN_CHANGED, NULL);
		return node;
	}
	return NULL;
}

static void
delete_node(SimNode *node)
{
	node->exists = false;
	node->deleted = sim.pzxid = ++sim.zxid;
	fire(&node->watchers, NODE_GONE, node->name);
	fire(&sim.child_watchers, CHILDREN_CHANGED, NULL);
}

/* The server executes one request and answers, or does not. */
static void
execute(int c, Packet *request, bool answer)
{
	SimClient  *client = &sim.clients[c];
	Packet		reply = *request;
	SimNode    *node;

	reply.kind = REPLY;
	reply.rc = ZKL_RC_OK;
	switch (request->op)
	{
		case ZKL_OP_MKDIRS:
			if (!sim.directory)
				sim.next_digits = 0;
			sim.directory = true;
			break;
		case ZKL_OP_CREATE:
			if (request->sequential && random_below(20) == 0)
				reply.rc = ZKL_RC_NOT_EXECUTED;
			else if (!sim.directory)
				reply.rc = ZKL_RC_NONODE;
			else if ((node = create_node(request->name, request->sequential,
										 client->session)) == NULL)
				reply.rc = ZKL_RC_THROTTLED;
			else
			{
				strcpy(reply.name, node->name);
				/* half of them as if they had travelled in a batch */
				reply.czxid = random_below(2) ? node->czxid : 0;
				sim.result.batched += reply.czxid == 0;
				reply.owner = node->owner;
			}
			break;
		case ZKL_OP_PROBE:
			sim.zxid++;
			break;
		case ZKL_OP_LIST:
			{
				char	   *children[NODES];
				int			n = 0;

				if (!sim.directory)
				{
					reply.rc = ZKL_RC_NONODE;
					break;
				}
				for (int i = 0; i < NODES; i++)
					if (sim.nodes[i].exists)
						children[n++] = sim.nodes[i].name;
				zkl_listing_read(&reply.listing, children, n);
				reply.listing.pzxid = sim.pzxid;
				if (answer && request->listing.mode == ZKL_MODE_PERMIT)
					sim.child_watchers |= 1u << c;
				break;
			}
		case ZKL_OP_OWN:
		case ZKL_OP_PRED:
			node = find_node(request->name);
			if (node == NULL)
				reply.rc = ZKL_RC_NONODE;
			else
			{
				reply.czxid = node->czxid;
				reply.owner = node->owner;
				if (answer)
					node->watchers |= 1u << c;
			}
			break;
		case ZKL_OP_DELETE:
			node = find_node(request->name);
			if (node == NULL)
				reply.rc = ZKL_RC_NONODE;
			else
				delete_node(node);
			break;
	}
	reply.zxid = sim.zxid;
	if (!answer)
		reply.rc = random_below(2) ? ZKL_RC_CONNECTIONLOSS : ZKL_RC_OPERATIONTIMEOUT;
	*push(&client->from_server) = reply;
}

/*
 * The connection breaks: some of the requests under way were executed, none is
 * answered. Then the library says so, and some time later connects again.
 */
static void
break_connection(int c)
{
	SimClient  *client = &sim.clients[c];
	int			executed = client->to_server.count ? (int) random_below(client->to_server.count + 1) : 0;

	sim.result.faults++;
	for (int i = 0; client->to_server.count > 0; i++)
	{
		Packet		request = pop(&client->to_server);

		if (i < executed && !client->expired)
			execute(c, &request, false);
		else
		{
			request.kind = REPLY;
			request.rc = ZKL_RC_CONNECTIONLOSS;
			*push(&client->from_server) = request;
		}
	}
	client->up = false;
	push(&client->from_server)->kind = DISCONNECTED;
}

static void
reconnect(int c)
{
	SimClient  *client = &sim.clients[c];

	if (client->expired)
	{
		push(&client->from_server)->kind = EXPIRED;
		return;
	}
	client->up = true;
	push(&client->from_server)->kind = CONNECTED;
}

static void
expire(int c)
{
	SimClient  *client = &sim.clients[c];

	if (client->up || client->expired)
		return;
	sim.result.faults++;
	client->expired = true;
	for (int i = 0; i < NODES; i++)
		if (sim.nodes[i].exists && sim.nodes[i].owner == client->session)
			delete_node(&sim.nodes[i]);
	for (int i = 0; i < NODES; i++)
		sim.nodes[i].watchers &= ~(1u << c);
	sim.child_watchers &= ~(1u << c);
}

/* Is the machine's node still there, at the servers? */
static SimNode *
its_node(SimMachine *machine)
{
	return machine->queue.node[0] != '\0' ? find_node(machine->queue.node) : NULL;
}

/* A node of this client whose owner has let go: nobody holds by it any more. */
static bool
is_released(const SimClient *client, const char *node)
{
	for (int m = 0; m < MACHINES; m++)
		if (client->machines[m].active && client->machines[m].queue.abandoned &&
			strcmp(client->machines[m].queue.node, node) == 0)
			return true;
	return false;
}

/*
 * After each event: "zxid" is the state that the event told of.
 */
static void
check_machine(int c, int m, int64_t zxid)
{
	SimClient  *client = &sim.clients[c];
	SimMachine *machine = &client->machines[m];
	ZklQueue   *queue = &machine->queue;
	int			mine = 0;

	for (int i = 0; i < NODES; i++)
		if (sim.nodes[i].exists && queue->uuid[0] != '\0' &&
			zkl_node_has_uuid(sim.nodes[i].name, queue->uuid))
			mine++;
	if (mine > 1)
		violation("step %" PRId64 ": %d nodes for one request", sim.result.steps, mine);

	if (queue->state == ZKL_QUEUE_GRANTED && machine->seen != ZKL_QUEUE_GRANTED)
	{
		ZklContender own;

		sim.result.grants++;
		if (queue->czxid == 0)
			violation("step %" PRId64 ": granted without a token", sim.result.steps);
		if (queue->owner != client->session)
			violation("step %" PRId64 ": granted a node of another session", sim.result.steps);
		if (queue->mode != ZKL_MODE_READ && queue->mode != ZKL_MODE_PERMIT &&
			its_node(machine) != NULL)
		{
			if (queue->czxid <= sim.last_token)
				violation("step %" PRId64 ": token %" PRId64 " after %" PRId64, sim.result.steps,
						  queue->czxid, sim.last_token);
			sim.last_token = queue->czxid;
		}
		zkl_contender_parse(queue->node, &own);
		for (int i = 0; i < NODES; i++)
		{
			ZklContender other;

			if (strcmp(sim.nodes[i].name, queue->node) == 0)
			{
				if (!sim.nodes[i].exists && sim.nodes[i].deleted <= zxid)
					violation("step %" PRId64 ": granted a node known to be deleted", sim.result.steps);
				continue;
			}
			if (sim.flavour != SEMAPHORE &&
				sim.nodes[i].exists && !sim.nodes[i].downgraded &&
				!is_released(client, sim.nodes[i].name) && zkl_contender_parse(sim.nodes[i].name, &other) &&
				zkl_mode_conflicts(queue->mode, other.kind) &&
				other.digits < own.digits && its_node(machine) != NULL)
				violation("step %" PRId64 ": granted %s behind %s", sim.result.steps, queue->node,
						  sim.nodes[i].name);
		}
	}
	if (queue->state == ZKL_QUEUE_GRANTED && machine->seen != ZKL_QUEUE_GRANTED &&
		queue->beside[0] != '\0')
		sim.result.downgrades++;
	machine->seen = queue->state;

	if (queue->state == ZKL_QUEUE_ENDED)
	{
		if (mine > 0)
			violation("step %" PRId64 ": ended with a node left", sim.result.steps);
		machine->active = false;
	}
	if (queue->state == ZKL_QUEUE_ENDED || queue->uuid[0] == '\0')
		machine->serial++;
}

static bool
may_hold_together(const ZklQueue *a, const ZklQueue *b)
{
	return (a->mode == ZKL_MODE_READ && b->mode == ZKL_MODE_READ) ||
		strcmp(a->beside, b->node) == 0 || strcmp(b->beside, a->node) == 0;
}

static void
check_exclusion(void)
{
	ZklQueue   *holders[CLIENTS * MACHINES];
	int			n = 0;

	for (int c = 0; c < CLIENTS; c++)
		for (int m = 0; m < MACHINES; m++)
		{
			SimMachine *machine = &sim.clients[c].machines[m];

			if (machine->active && machine->queue.state == ZKL_QUEUE_GRANTED &&
				its_node(machine) != NULL)
				holders[n++] = &machine->queue;
		}
	if (sim.flavour == SEMAPHORE)
	{
		if (n > LEASES)
			violation("step %" PRId64 ": %d leases with nodes", sim.result.steps, n);
		return;
	}
	for (int i = 0; i < n; i++)
		for (int j = 0; j < i; j++)
			if (!may_hold_together(holders[i], holders[j]))
				violation("step %" PRId64 ": %s and %s hold together", sim.result.steps,
						  holders[i]->node, holders[j]->node);
}

static void
send_wanted(int c)
{
	SimClient  *client = &sim.clients[c];

	if (!client->believes || !client->up)
		return;
	for (int m = 0; m < MACHINES; m++)
	{
		SimMachine *machine = &client->machines[m];
		ZklQueue   *queue = &machine->queue;
		uint32_t	wanted;

		if (!machine->active || random_below(2) == 0)
			continue;
		wanted = zkl_queue_wanted(queue);
		for (uint32_t bit = 1; bit <= ZKL_OP_LAST; bit <<= 1)
		{
			Packet	   *packet;

			if ((wanted & bit) == 0)
				continue;
			if (bit == ZKL_OP_CREATE && queue->uuid[0] == '\0')
				snprintf(queue->uuid, sizeof(queue->uuid), "%08x-0000-4000-8000-%012x",
						 random_below(INT32_MAX), (unsigned) ++sim.next_uuid);
			packet = push(&client->to_server);
			packet->kind = REQUEST;
			packet->machine = m;
			packet->serial = machine->serial;
			packet->op = bit;
			packet->connection = client->connection;
			if (bit == ZKL_OP_CREATE)
			{
				zkl_node_prefix(packet->name, queue->uuid, queue->mode);
				strcat(packet->name, zkl_node_digits(queue->beside));
				packet->sequential = queue->beside[0] == '\0';
			}
			else if (bit == ZKL_OP_PRED)
				strcpy(packet->name, queue->pred);
			else
				strcpy(packet->name, queue->node);
			strcpy(packet->listing.uuid, queue->uuid);
			packet->listing.mode = queue->mode;
			strcpy(packet->listing.beside, queue->beside);
			zkl_queue_sent(queue, bit);
		}
	}
}

static void
deliver_reply(SimClient *client, Packet *packet)
{
	SimMachine *machine = &client->machines[packet->machine];
	ZklQueue   *queue = &machine->queue;
	bool		was_waiting = queue->state == ZKL_QUEUE_QUEUED;

	if (!machine->active || packet->serial != machine->serial)
		return;
	switch (packet->op)
	{
		case ZKL_OP_MKDIRS:
			zkl_queue_made_dirs(queue, packet->rc);
			break;
		case ZKL_OP_CREATE:
			if (packet->rc == ZKL_RC_NOT_EXECUTED)
				zkl_queue_not_executed(queue, packet->op);
			else
				zkl_queue_created(queue, packet->rc, packet->name, packet->czxid,
								  packet->owner);
			break;
		case ZKL_OP_PROBE:
			zkl_queue_probed(queue, packet->rc, packet->connection);
			break;
		case ZKL_OP_LIST:
			zkl_queue_listed(queue, packet->rc, packet->connection, &packet->listing);
			break;
		case ZKL_OP_OWN:
			zkl_queue_own(queue, packet->rc, packet->connection, packet->czxid, packet->owner);
			break;
		case ZKL_OP_PRED:
			zkl_queue_pred(queue, packet->rc, packet->connection);
			break;
		case ZKL_OP_DELETE:
			zkl_queue_deleted(queue, packet->rc);
			break;
	}
	if (was_waiting && queue->state == ZKL_QUEUE_GRANTED && packet->op == ZKL_OP_PRED)
		sim.result.fast_grants++;
}

static void
deliver(int c)
{
	SimClient  *client = &sim.clients[c];
	Packet		packet = pop(&client->from_server);

	switch (packet.kind)
	{
		case REPLY:
			deliver_reply(client, &packet);
			break;
		case CONNECTED:
			client->believes = true;
			client->connection++;
			break;
		case DISCONNECTED:
			client->believes = false;
			break;
		case EXPIRED:
			client->believes = client->expired = false;
			client->session = ++sim.next_session;
			break;
		default:
			break;
	}
	for (int m = 0; m < MACHINES; m++)
	{
		SimMachine *machine = &client->machines[m];

		if (!machine->active)
			continue;
		switch (packet.kind)
		{
			case NODE_GONE:
				if (strcmp(packet.name, machine->queue.node) == 0)
					zkl_queue_own_gone(&machine->queue);
				else if (machine->queue.state == ZKL_QUEUE_QUEUED &&
						 strcmp(packet.name, machine->queue.pred) == 0)
				{
					zkl_queue_pred_gone(&machine->queue);
					if (machine->queue.state == ZKL_QUEUE_GRANTED)
						sim.result.fast_grants++;
				}
				break;
			case NODE_CHANGED:
				if (strcmp(packet.name, machine->queue.node) == 0)
					zkl_queue_own_changed(&machine->queue);
				else if (strcmp(packet.name, machine->queue.pred) == 0)
					zkl_queue_pred_changed(&machine->queue);
				break;
			case CHILDREN_CHANGED:
				zkl_queue_children_changed(&machine->queue);
				break;
			case CONNECTED:
				zkl_queue_connected(&machine->queue, client->connection, client->session);
				break;
			case DISCONNECTED:
				zkl_queue_disconnected(&machine->queue);
				break;
			case EXPIRED:
				machine->serial++;
				zkl_queue_session_gone(&machine->queue);
				break;
			default:
				break;
		}
		check_machine(c, m, packet.zxid);
	}
}

/* The write hold of this client that a downgrade could start from, or NULL. */
static SimMachine *
find_writer(SimClient *client)
{
	for (int m = 0; m < MACHINES; m++)
		if (client->machines[m].active &&
			client->machines[m].queue.mode == ZKL_MODE_WRITE &&
			client->machines[m].queue.state == ZKL_QUEUE_GRANTED)
			return &client->machines[m];
	return NULL;
}

/* Does anybody queue? At a semaphore a mutex lets in one at a time; a try needs none. */
static bool
somebody_waits(void)
{
	for (int c = 0; c < CLIENTS; c++)
		for (int m = 0; m < MACHINES; m++)
			if (sim.clients[c].machines[m].active && !sim.clients[c].machines[m].queue.try &&
				sim.clients[c].machines[m].queue.state != ZKL_QUEUE_GRANTED)
				return true;
	return false;
}

static void
begin_request(SimClient *client, SimMachine *machine)
{
	SimMachine *writer = find_writer(client);
	ZklMode		mode = sim.flavour == SEMAPHORE ? ZKL_MODE_PERMIT :
		sim.flavour == MUTEX ? ZKL_MODE_EXCLUSIVE : (ZklMode) random_below(3);
	bool		downgrade = sim.flavour == SHARED && writer != NULL && random_below(2) == 0;
	bool		try = !downgrade &&
		(random_below(4) == 0 || (sim.flavour == SEMAPHORE && somebody_waits()));

	machine->active = true;
	machine->serial++;
	machine->seen = ZKL_QUEUE_NEW;
	zkl_queue_init(&machine->queue, downgrade ? ZKL_MODE_READ : mode, try);
	zkl_queue_set_permits(&machine->queue, LEASES);
	if (downgrade)
		zkl_queue_set_beside(&machine->queue, writer->queue.node);
}

/* Who gives a write hold up while it is being downgraded gives both up. */
static void
abandon(SimClient *client, SimMachine *machine)
{
	for (int m = 0; m < MACHINES; m++)
	{
		ZklQueue   *other = &client->machines[m].queue;

		if (client->machines[m].active && !other->abandoned && machine->queue.node[0] != '\0' &&
			strcmp(other->beside, machine->queue.node) == 0 &&
			other->state != ZKL_QUEUE_GRANTED)
			zkl_queue_abandon(other);
	}
	if (machine->queue.state == ZKL_QUEUE_GRANTED)
	{
		char		node[ZKL_OWN_NODE_SIZE];

		strcpy(node, machine->queue.node);
		zkl_queue_abandon(&machine->queue);
		for (int m = 0; m < MACHINES; m++)
		{
			ZklQueue   *next = &client->machines[m].queue;
			ZklQueueState before = next->state;

			if (!client->machines[m].active || next == &machine->queue)
				continue;
			zkl_queue_pred_released(next, node);
			sim.result.handovers += next->state == ZKL_QUEUE_GRANTED && before == ZKL_QUEUE_QUEUED;
		}
	}
	else
		zkl_queue_abandon(&machine->queue);
}

/* What a backend does: ask, let go, give up. */
static void
owner_step(int c)
{
	SimClient  *client = &sim.clients[c];
	int			m = (int) random_below(MACHINES);
	SimMachine *machine = &client->machines[m];

	if (!machine->active)
	{
		if (sim.quiet)
			return;
		begin_request(client, machine);
		if (client->believes)
			zkl_queue_connected(&machine->queue, client->connection, client->session);
	}
	else if (sim.flavour == SHARED && !sim.quiet && machine->queue.mode == ZKL_MODE_WRITE &&
			 machine->queue.state == ZKL_QUEUE_GRANTED && random_below(4) > 0)
		return;					/* it stays, to be downgraded */
	else if (machine->queue.result != ZKL_RESULT_NONE ||
			 machine->queue.state == ZKL_QUEUE_GRANTED || random_below(20) == 0)
	{
		if (!machine->queue.abandoned)
			abandon(client, machine);
	}
	for (m = 0; m < MACHINES; m++)
		if (client->machines[m].active)
			check_machine(c, m, 0);
}

static void
fault_step(void)
{
	int			c = (int) random_below(CLIENTS);
	int			i = (int) random_below(NODES);

	for (int n = 0; n < NODES && !sim.nodes[i].exists; n++)
		i = (i + 1) % NODES;
	switch (random_below(7))
	{
		case 0:
		case 1:
			if (sim.clients[c].up)
				break_connection(c);
			break;
		case 2:
			expire(c);
			break;
		case 3:
			/* somebody deletes a node */
			if (sim.nodes[i].exists)
			{
				sim.result.faults++;
				delete_node(&sim.nodes[i]);
			}
			break;
		case 4:
			/* a foreign contender comes */
			if (sim.directory)
				(void) create_node(sim.flavour == SHARED && random_below(2) ?
								   "feedfacefeedface__rlock__" : "feedfacefeedface__lock__",
								   true, -1);
			break;
		case 6:
			/* somebody writes into a node */
			if (sim.nodes[i].exists)
			{
				sim.zxid++;
				fire(&sim.nodes[i].watchers, NODE_CHANGED, sim.nodes[i].name);
			}
			break;
		case 5:
			/* the reaper */
			for (i = 0; i < NODES; i++)
				if (sim.nodes[i].exists)
					return;
			sim.directory = false;
			break;
	}
}

static void
sim_step(void)
{
	int			c = (int) random_below(CLIENTS);
	SimClient  *client = &sim.clients[c];

	sim.result.steps++;
	switch (random_below(10))
	{
		case 0:
			owner_step(c);
			break;
		case 1:
		case 2:
		case 3:
			send_wanted(c);
			break;
		case 4:
		case 5:
		case 6:
			if (client->up && client->to_server.count > 0)
			{
				Packet		request = pop(&client->to_server);

				execute(c, &request, true);
			}
			break;
		case 7:
		case 8:
			if (client->from_server.count > 0)
				deliver(c);
			break;
		case 9:
			if (!client->up && client->from_server.count == 0)
				reconnect(c);
			else if (!sim.quiet && random_below(2) == 0)
				fault_step();
			else if (random_below(50) == 0)
				for (int m = 0; m < MACHINES; m++)
					if (client->machines[m].active)
					{
						zkl_queue_tick(&client->machines[m].queue, random_below(2));
						check_machine(c, m, 0);
					}
			break;
	}
	/* foreign contenders do not stay for ever */
	if (random_below(40) == 0)
		for (int i = 0; i < NODES; i++)
			if (sim.nodes[i].exists && sim.nodes[i].owner == -1)
			{
				delete_node(&sim.nodes[i]);
				break;
			}
	check_exclusion();
}

static int
count_left(void)
{
	int			left = 0;

	for (int c = 0; c < CLIENTS; c++)
		for (int m = 0; m < MACHINES; m++)
			left += sim.clients[c].machines[m].active;
	for (int i = 0; i < NODES; i++)
		left += sim.nodes[i].exists;
	return left;
}

/*
 * Take at least so many steps. The result is the same for the same seed.
 */
SimResult
sim_queue_run(Flavour flavour, int64_t steps, uint64_t seed)
{
	memset(&sim, 0, sizeof(sim));
	sim.flavour = flavour;
	sim.rng = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
	for (int c = 0; c < CLIENTS; c++)
	{
		sim.clients[c].session = ++sim.next_session;
		sim.clients[c].to_server.packets = calloc(PACKETS, sizeof(Packet));
		sim.clients[c].from_server.packets = calloc(PACKETS, sizeof(Packet));
	}

	while (sim.result.steps < steps && sim.result.violations == 0)
	{
		/* storms with calm between them, in which everything has to end */
		sim.quiet = false;
		for (int i = 0; i < 2000 && sim.result.violations == 0; i++)
			sim_step();
		sim.quiet = true;
		for (int i = 0; i < 200000 && sim.result.violations == 0 && count_left() > 0; i++)
			sim_step();
		if (count_left() > 0)
			sim.result.unfinished++;
	}

	for (int c = 0; c < CLIENTS; c++)
	{
		free(sim.clients[c].to_server.packets);
		free(sim.clients[c].from_server.packets);
	}
	return sim.result;
}
