/* What a device does: moves bytes between processes over datagrams, in no order. A thread of each
 * endpoint does it, so that bytes come and go at any time, as a device's do. */
#define _GNU_SOURCE
#include "rules.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MARK 0xefa0efa1efa2efa3u
#define LOOK_EVERY_US 50000
#define LOSS_US_MAX 300000
#define SENDS_AT_ONCE 32

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void broken(const char *rule, ...)
{
	va_list args;

	va_start(args, rule);
	fprintf(stderr, "efa rules: ");
	vfprintf(stderr, rule, args);
	fprintf(stderr, "\n");
	abort();
}

uint64_t number_of(const char *variable, uint64_t otherwise)
{
	const char *text = getenv(variable);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

/* A number below this one. */
uint64_t chance(uint64_t below)
{
	static uint64_t state;

	if (!state)
		state = number_of("EFA_RULES_SEED", getpid()) * 0x9e3779b97f4a7c15u | 1;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state >> 11) % below;
}

uint64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Contexts and completions */

void take_context(void *context)
{
	uint64_t *words = context;

	if (words[0] == MARK && words[1] == (uint64_t)context)
		broken("a context is used twice before its completion");
	words[0] = MARK;
	words[1] = (uint64_t)context;
	memset(words + 2, 0xab, sizeof(struct fi_context2) - 16);
}

void give_context_back(void *context)
{
	uint64_t *words = context;

	if (words[0] != MARK || words[1] != (uint64_t)context || words[7] != 0xababababababababu)
		broken("a context was changed before its completion");
	memset(context, 0xcd, sizeof(struct fi_context2));
}

void complete(struct queue *queue, void *context, uint64_t flags, uint64_t bytes, uint64_t data, int code)
{
	if (context)
		give_context_back(context);
	if (queue->count == queue->size)
		broken("a completion queue of %zu entries overruns", queue->size);
	queue->entries[queue->count] = (struct entry){{context, flags, bytes, NULL, data}, code};
	__atomic_fetch_add(&queue->count, 1, __ATOMIC_RELEASE);
}

/* Pieces */

struct pieces cut(uint64_t address, uint64_t bytes, uint64_t size)
{
	struct pieces pieces = {.address = address, .bytes = bytes, .size = size};
	uint64_t before = address % 64;

	pieces.count = bytes ? (before + bytes + size - 1) / size : 1;
	pieces.first = chance(pieces.count);
	/* A stride without a common divisor visits every piece. */
	for (pieces.stride = 1 + chance(pieces.count);; pieces.stride++) {
		uint64_t a = pieces.stride, b = pieces.count;
		while (b) {
			uint64_t rest = a % b;
			a = b, b = rest;
		}
		if (a == 1)
			return pieces;
	}
}

static uint64_t piece_bytes(const struct pieces *pieces, uint64_t *offset)
{
	uint64_t before = pieces->address % 64;
	uint64_t index = (pieces->first + pieces->next * pieces->stride) % pieces->count;
	uint64_t start = index * pieces->size, end = start + pieces->size;

	*offset = start > before ? start - before : 0;
	if (end > before + pieces->bytes)
		end = before + pieces->bytes;
	return end - before - *offset;
}

/* Whether a region lets peers do this to these bytes now. */
static bool is_reached(struct endpoint *endpoint, uint64_t address, uint64_t bytes, uint64_t key, uint64_t access)
{
	for (struct region *region = endpoint->domain->regions; region; region = region->next) {
		uint64_t start = (uint64_t)region->piece.iov_base, length = region->piece.iov_len;
		if (region->base.key == key && region->domain == endpoint->domain)
			return region->access & access && address >= start && bytes <= length &&
			       address - start <= length - bytes;
	}
	return false;
}

/* Datagrams */

/* Gives 0, EAGAIN, or another error number where the peer is gone. */
static int tell(struct endpoint *endpoint, const char *to, const struct head *head, const void *bytes, size_t count)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct iovec pieces[2] = {{(void *)head, sizeof(*head)}, {(void *)bytes, count}};
	struct msghdr message = {.msg_name = &address,
				 .msg_namelen = offsetof(struct sockaddr_un, sun_path) + NAME_BYTES,
				 .msg_iov = pieces,
				 .msg_iovlen = 2};

	memcpy(address.sun_path, to, NAME_BYTES);
	if (sendmsg(endpoint->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
		return 0;
	return errno == ENOBUFS || errno == ENOMEM || errno == EINTR ? EAGAIN : errno;
}

static void answer(struct endpoint *endpoint, struct arrival *arrival)
{
	struct answer *made = calloc(1, sizeof(*made));

	memcpy(made->to, arrival->from, NAME_BYTES);
	made->head = (struct head){.kind = ANSWER, .id = arrival->id, .code = arrival->code};
	made->next = endpoint->answers;
	endpoint->answers = made;
	arrival->is_answered = true;
}

/* Sends what waits; false if something still does. */
static bool send_answers(struct endpoint *endpoint)
{
	for (struct answer **at = &endpoint->answers; *at;) {
		struct answer *one = *at;
		if (tell(endpoint, one->to, &one->head, NULL, 0) == EAGAIN) {
			at = &one->next;
			continue;
		}
		*at = one->next;
		free(one);
	}
	return !endpoint->answers;
}

/* Operations of this process */

static void finish(struct endpoint *endpoint, struct operation *operation, int code)
{
	uint64_t flags = FI_RMA | (operation->is_read ? FI_READ : FI_WRITE);
	struct operation **at = &endpoint->operations;

	while (*at != operation)
		at = &(*at)->next;
	*at = operation->next;
	endpoint->operations_count--;
	operation->region->users--;
	endpoint->addresses->peers[operation->peer].users--;
	complete(endpoint->transmit, operation->context, flags, 0, 0, code);
	free(operation);
}

static struct operation *find(struct endpoint *endpoint, uint64_t id)
{
	struct operation *found = endpoint->operations;

	while (found && found->id != id)
		found = found->next;
	return found;
}

/* A read is one request; a write is all its pieces. */
static uint64_t datagrams(const struct operation *operation)
{
	return operation->is_read ? 1 : operation->pieces.count;
}

/* Sends one datagram of an operation; false if there is no room. */
static bool send_of(struct endpoint *endpoint, struct operation *operation)
{
	struct pieces *pieces = &operation->pieces;
	struct head head = {.kind = operation->is_read ? READ : PIECE,
			    .data = operation->data,
			    .id = operation->id,
			    .address = pieces->address,
			    .bytes = pieces->bytes,
			    .key = operation->key,
			    .size = pieces->size,
			    .has_data = operation->has_data};
	uint64_t count = 0;
	if (!operation->is_read)
		count = piece_bytes(pieces, &head.offset);
	const char *to = endpoint->addresses->peers[operation->peer].name;
	int code = tell(endpoint, to, &head, operation->local + head.offset, count);

	if (code == EAGAIN)
		return false;
	if (code) {
		operation->is_lost = true;
		operation->look_us = now_us() + chance(LOSS_US_MAX);
	}
	pieces->next++;
	return true;
}

/* Looks after operations whose peers are silent. */
static void look(struct endpoint *endpoint)
{
	uint64_t now = now_us();
	struct head head = {.kind = LOOK};
	struct operation *next;

	for (struct operation *one = endpoint->operations; one; one = next) {
		next = one->next;
		if (now < one->look_us)
			continue;
		if (one->is_lost) {
			finish(endpoint, one, FI_EHOSTUNREACH);
			continue;
		}
		one->look_us = now + LOOK_EVERY_US;
		int code = tell(endpoint, endpoint->addresses->peers[one->peer].name, &head, NULL, 0);
		if (code && code != EAGAIN) {
			one->is_lost = true;
			one->look_us = now + chance(LOSS_US_MAX);
		}
	}
}

static bool may_send(const struct operation *operation, uint64_t now)
{
	return !operation->is_lost && operation->begin_us <= now && operation->pieces.next < datagrams(operation);
}

/* The operation at a place among those that may send. */
static struct operation *sender(struct endpoint *endpoint, uint64_t place, uint64_t now)
{
	struct operation *one = endpoint->operations;

	while (!may_send(one, now) || place--)
		one = one->next;
	return one;
}

/* Sends one piece of something, chosen by chance; false if nothing can be sent. */
static bool send_one(struct endpoint *endpoint)
{
	uint64_t count = 0, now = now_us();

	for (struct operation *one = endpoint->operations; one; one = one->next)
		count += may_send(one, now);
	uint64_t first = count ? chance(count) : 0;
	for (uint64_t i = 0; i < count; i++)
		if (send_of(endpoint, sender(endpoint, (first + i) % count, now)))
			return true;
	return false;
}

/* What peers do here */

static void forget(struct endpoint *endpoint, struct arrival *arrival)
{
	struct arrival **at = &endpoint->arrivals;

	while (*at != arrival)
		at = &(*at)->next;
	*at = arrival->next;
	free(arrival);
}

/* A dead key is told or not. */
static void note_refused(struct arrival *arrival)
{
	arrival->code = arrival->code ? arrival->code : (chance(2) ? FI_EKEYREJECTED : -1);
}

/* All bytes are in place: false while no receive is there. */
static bool arrive(struct endpoint *endpoint, struct arrival *arrival)
{
	bool takes = endpoint->domain->takes_receives;
	void *context = NULL;

	if (!arrival->code && arrival->has_data) {
		if (takes && !endpoint->receives_count)
			return false;
		if (takes) {
			size_t at = chance(endpoint->receives_count);
			context = endpoint->receives[at];
			endpoint->receives[at] = endpoint->receives[--endpoint->receives_count];
		}
		complete(endpoint->receive, context, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA,
			 arrival->pieces.bytes, arrival->data, 0);
	}
	if (arrival->code == -1)
		arrival->code = 0;
	if (!arrival->is_answered)
		answer(endpoint, arrival);
	forget(endpoint, arrival);
	return true;
}

static void place_one(struct endpoint *endpoint)
{
	size_t at = chance(endpoint->held_count);
	struct held *held = endpoint->held[at];
	struct arrival *arrival = held->arrival;
	uint64_t address = arrival->pieces.address + held->offset;

	endpoint->held[at] = endpoint->held[--endpoint->held_count];
	if (!is_reached(endpoint, address, held->bytes, arrival->key, FI_REMOTE_WRITE))
		note_refused(arrival);
	else
		memcpy((void *)address, held->payload, held->bytes);
	free(held);
	arrival->placed++;
}

/* Answers a peer's read by a piece; false if there is no room. */
static bool send_back(struct endpoint *endpoint, struct arrival *arrival)
{
	struct head head = {.kind = BACK, .id = arrival->id};
	uint64_t bytes = piece_bytes(&arrival->pieces, &head.offset);
	uint64_t address = arrival->pieces.address + head.offset;

	if (!is_reached(endpoint, address, bytes, arrival->key, FI_REMOTE_READ)) {
		note_refused(arrival);
		arrival->code = arrival->code == -1 ? 0 : arrival->code;
		answer(endpoint, arrival);
		arrival->pieces.next = arrival->pieces.count;
		return true;
	}
	if (tell(endpoint, arrival->from, &head, (void *)address, bytes) == EAGAIN)
		return false;
	arrival->pieces.next++;
	return true;
}

/* Moves what has come: places pieces, answers reads, tells what is complete. */
static bool move_arrivals(struct endpoint *endpoint)
{
	bool has_moved = false;
	struct arrival *next;

	if (endpoint->held_count) {
		uint64_t count = 1 + chance(endpoint->held_count);
		while (count--)
			place_one(endpoint);
		has_moved = true;
	}
	for (struct arrival *one = endpoint->arrivals; one; one = next) {
		next = one->next;
		if (!one->is_read) {
			if (one->placed == one->pieces.count)
				has_moved |= arrive(endpoint, one);
			continue;
		}
		has_moved |= send_back(endpoint, one);
		if (one->pieces.next == one->pieces.count)
			forget(endpoint, one);
	}
	return has_moved;
}

static struct arrival *arrival_of(struct endpoint *endpoint, const char *from, const struct head *head)
{
	struct arrival *one = endpoint->arrivals;

	while (one && (one->id != head->id || memcmp(one->from, from, NAME_BYTES)))
		one = one->next;
	if (one)
		return one;
	one = calloc(1, sizeof(*one));
	memcpy(one->from, from, NAME_BYTES);
	one->is_read = head->kind == READ;
	one->has_data = head->has_data;
	one->id = head->id;
	one->key = head->key;
	one->data = head->data;
	one->pieces = cut(head->address, head->bytes, head->size);
	one->next = endpoint->arrivals;
	endpoint->arrivals = one;
	return one;
}

static void check_known(struct endpoint *endpoint, const char *from)
{
	for (size_t i = 0; i < endpoint->addresses->count; i++)
		if (!memcmp(endpoint->addresses->peers[i].name, from, NAME_BYTES))
			return;
	broken("a peer writes or reads that was never inserted in this address vector");
}

static void take_piece(struct endpoint *endpoint, struct held *held, const char *from, const struct head *head)
{
	struct arrival *arrival = arrival_of(endpoint, from, head);
	uint64_t address = head->address, bytes = head->bytes;

	held->arrival = arrival;
	held->offset = head->offset;
	endpoint->held[endpoint->held_count++] = held;
	/* A write may be complete for the peer before its bytes are in place. */
	if (++arrival->came == arrival->pieces.count && !arrival->has_data && chance(2) &&
	    is_reached(endpoint, address, bytes, arrival->key, FI_REMOTE_WRITE))
		answer(endpoint, arrival);
}

static void take(struct endpoint *endpoint, struct held *held, const char *from, const struct head *head)
{
	struct operation *operation = find(endpoint, head->id);

	switch (head->kind) {
	case PIECE:
		check_known(endpoint, from);
		take_piece(endpoint, held, from, head);
		return;
	case READ:
		check_known(endpoint, from);
		arrival_of(endpoint, from, head);
		break;
	case BACK:
		if (operation && !operation->is_lost) {
			memcpy(operation->local + head->offset, held->payload, held->bytes);
			if (++operation->arrived == operation->pieces.count)
				finish(endpoint, operation, 0);
		}
		break;
	case ANSWER:
		if (operation)
			finish(endpoint, operation, head->code);
		break;
	}
	free(held);
}

/* Takes one datagram; false if there is none. */
static bool receive_one(struct endpoint *endpoint)
{
	struct sockaddr_un from;
	struct head head;
	struct held *held = malloc(sizeof(*held));
	struct iovec pieces[2] = {{&head, sizeof(head)}, {held->payload, sizeof(held->payload)}};
	struct msghdr message = {.msg_name = &from, .msg_namelen = sizeof(from), .msg_iov = pieces, .msg_iovlen = 2};
	ssize_t bytes = recvmsg(endpoint->socket, &message, MSG_DONTWAIT);

	if (bytes < (ssize_t)sizeof(head)) {
		free(held);
		return false;
	}
	held->bytes = bytes - sizeof(head);
	take(endpoint, held, from.sun_path, &head);
	return true;
}

void *run_device(void *argument)
{
	struct endpoint *endpoint = argument;
	struct pollfd files[2] = {{endpoint->socket, POLLIN, 0}, {endpoint->wake, POLLIN, 0}};
	sigset_t all;
	uint64_t count;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	pthread_mutex_lock(&lock);
	while (!endpoint->is_stopping) {
		bool has_moved = false;
		for (int i = 0; i < SENDS_AT_ONCE && endpoint->held_count < HELD_MAX; i++)
			if (receive_one(endpoint))
				has_moved = true;
			else
				break;
		has_moved |= move_arrivals(endpoint);
		bool is_told = send_answers(endpoint);
		for (uint64_t i = 1 + chance(SENDS_AT_ONCE); i && send_one(endpoint); i--)
			has_moved = true;
		look(endpoint);
		bool has_more = !is_told || endpoint->arrivals || endpoint->operations;
		pthread_mutex_unlock(&lock);
		/* What waits for a peer's room is tried again soon. */
		struct timespec wait = {0, has_more ? 50000 : 50000000};
		if (!has_moved && ppoll(files, 2, &wait, NULL) > 0 && files[1].revents)
			(void)!read(endpoint->wake, &count, sizeof(count));
		pthread_mutex_lock(&lock);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

void end_device(struct endpoint *endpoint)
{
	for (int i = 0; i < 100 && !send_answers(endpoint); i++)
		usleep(100);
	while (endpoint->answers) {
		struct answer *one = endpoint->answers;
		endpoint->answers = one->next;
		free(one);
	}
	while (endpoint->held_count)
		free(endpoint->held[--endpoint->held_count]);
	while (endpoint->arrivals)
		forget(endpoint, endpoint->arrivals);
	while (endpoint->operations) {
		struct operation *one = endpoint->operations;
		endpoint->operations = one->next;
		one->region->users--;
		endpoint->addresses->peers[one->peer].users--;
		give_context_back(one->context);
		free(one);
	}
	while (endpoint->receives_count)
		give_context_back(endpoint->receives[--endpoint->receives_count]);
}
