/* A libfabric with the provider efa, whose fabric efa-direct moves bytes between the processes of
 * one host and keeps to the rules of Amazon's devices: no order, no wait objects, local memory that
 * is registered, contexts that it writes. Who breaks a rule is ended with one sentence. Objects and
 * posts are here, info.c says what there is, and device.c moves the bytes.
 *
 * Variables: EFA_RULES_SEED is that of all chance (the process's number), EFA_RULES_BYTES_MAX the
 * longest write or read, EFA_RULES_EMULATED what FI_OPT_EFA_EMULATED_WRITE answers. */
#define _GNU_SOURCE
#include "rules.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Of posts, how many begin late, and how much. */
#define LATE_ONE_IN 32
#define LATE_US_MAX 2000
#define OPT_CUDA_API 10
#define OPT_SHARED_MEMORY 11
#define OPT_MAX_RMA_SIZE 14
#define OPT_EMULATED_WRITE (-(0xefa << 16) + 2)

static void check_unused(int users, const char *what)
{
	if (users)
		broken("%s is closed while %d others need it", what, users);
}

/* Regions */

static int close_region(struct fid *fid)
{
	struct region *region = (struct region *)fid;
	struct region **at = &region->domain->regions;

	pthread_mutex_lock(&lock);
	check_unused(region->users, "a region");
	while (*at != region)
		at = &(*at)->next;
	*at = region->next;
	region->domain->users--;
	pthread_mutex_unlock(&lock);
	free(region);
	return 0;
}

static int register_region(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags,
			   struct fid_mr **mr)
{
	static struct fi_ops ops = {.size = sizeof(ops), .close = close_region};
	static uint64_t last_key;
	struct region *region = calloc(1, sizeof(*region));

	if (flags || attr->iov_count != 1 || attr->requested_key)
		broken("a region is one piece of this host's memory, and has no key of the program's");
	pthread_mutex_lock(&lock);
	region->domain = (struct domain *)fid;
	region->domain->users++;
	region->piece = attr->mr_iov[0];
	region->access = attr->access;
	region->base.fid.ops = &ops;
	region->base.mem_desc = region;
	/* Keys that somebody shortens to 32 bits are those of other regions. */
	region->base.key = (++last_key << 33 | 1ull << 63) + chance(4);
	region->next = region->domain->regions;
	region->domain->regions = region;
	pthread_mutex_unlock(&lock);
	*mr = &region->base;
	return 0;
}

/* The region that a post names, which holds these bytes. */
static struct region *local(struct domain *domain, void *desc, const void *bytes, size_t count, uint64_t access)
{
	struct region *region = domain->regions;

	while (region && region != desc)
		region = region->next;
	if (!region)
		broken("a post has no descriptor of a region of its domain");
	uint64_t start = (uint64_t)region->piece.iov_base, address = (uint64_t)bytes;
	if (address < start || address + count > start + region->piece.iov_len)
		broken("a post of memory outside of the region that it names");
	if (!(region->access & access))
		broken("a post of a region that is not registered for it");
	return region;
}

/* Queues */

static int close_queue(struct fid *fid)
{
	struct queue *queue = (struct queue *)fid;

	check_unused(queue->users, "a completion queue");
	queue->domain->users--;
	free(queue->entries);
	free(queue);
	return 0;
}

static ssize_t do_read_queue(struct queue *queue, struct fi_cq_data_entry *entries, size_t asked)
{
	size_t found = 0;

	/* Completions come in any order, and some later than they could. */
	while (!queue->has_failed && found < asked && queue->count && chance(4)) {
		size_t at = chance(queue->count);
		struct entry one = queue->entries[at];
		queue->entries[at] = queue->entries[queue->count - 1];
		__atomic_fetch_sub(&queue->count, 1, __ATOMIC_RELEASE);
		queue->has_failed = one.code != 0;
		if (queue->has_failed)
			queue->failure = one;
		else
			entries[found++] = one.data;
	}
	return found ? (ssize_t)found : queue->has_failed ? -FI_EAVAIL : -FI_EAGAIN;
}

static ssize_t read_queue(struct fid_cq *cq, void *buffer, size_t count)
{
	struct queue *queue = (struct queue *)cq;

	if (!__atomic_load_n(&queue->count, __ATOMIC_ACQUIRE) && !__atomic_load_n(&queue->has_failed, __ATOMIC_ACQUIRE))
		return -FI_EAGAIN;
	pthread_mutex_lock(&lock);
	ssize_t result = do_read_queue(queue, buffer, count);
	pthread_mutex_unlock(&lock);
	return result;
}

static ssize_t read_error(struct fid_cq *cq, struct fi_cq_err_entry *entry, uint64_t flags)
{
	struct queue *queue = (struct queue *)cq;

	(void)flags;
	pthread_mutex_lock(&lock);
	bool has_failed = queue->has_failed;
	if (has_failed) {
		entry->op_context = queue->failure.data.op_context;
		entry->flags = queue->failure.data.flags;
		entry->err = queue->failure.code;
		entry->prov_errno = queue->failure.code == FI_EKEYREJECTED ? 7 : 14;
		entry->err_data_size = 0;
		queue->has_failed = false;
	}
	pthread_mutex_unlock(&lock);
	return has_failed ? 1 : -FI_EAGAIN;
}

static const char *error_text(struct fid_cq *cq, int code, const void *data, char *buffer, size_t bytes)
{
	(void)cq, (void)data, (void)buffer, (void)bytes;
	return code == 7 ? "Bad remote address" : "Unresponsive receiver";
}

static int open_queue(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context)
{
	static struct fi_ops ops = {.size = sizeof(ops), .close = close_queue};
	static struct fi_ops_cq cq_ops = {.size = sizeof(cq_ops), .read = read_queue,
					  .readerr = read_error, .strerror = error_text};

	(void)context;
	if (attr->wait_obj != FI_WAIT_NONE)
		return -FI_ENOSYS;
	if (attr->format != FI_CQ_FORMAT_DATA || !attr->size)
		return -FI_EINVAL;
	struct queue *queue = calloc(1, sizeof(*queue));
	queue->size = attr->size;
	queue->entries = calloc(queue->size, sizeof(*queue->entries));
	queue->domain = (struct domain *)domain;
	queue->domain->users++;
	queue->base.fid.ops = &ops;
	queue->base.ops = &cq_ops;
	*cq = &queue->base;
	return 0;
}

/* Addresses */

static int close_addresses(struct fid *fid)
{
	struct addresses *addresses = (struct addresses *)fid;

	check_unused(addresses->users, "an address vector");
	addresses->domain->users--;
	free(addresses->peers);
	free(addresses);
	return 0;
}

/* Names stay when their peers are removed: what those have sent may still come. */
static int insert(struct fid_av *av, const void *name, size_t count, fi_addr_t *number, uint64_t flags,
		  void *context)
{
	struct addresses *addresses = (struct addresses *)av;
	size_t at = 0;

	(void)flags, (void)context;
	if (count != 1 || memcmp(name, "\0efa-", 5))
		return -FI_EINVAL;
	pthread_mutex_lock(&lock);
	while (at < addresses->count && memcmp(addresses->peers[at].name, name, NAME_BYTES))
		at++;
	if (at == addresses->count) {
		addresses->peers = realloc(addresses->peers, ++addresses->count * sizeof(*addresses->peers));
		memset(&addresses->peers[at], 0, sizeof(*addresses->peers));
		memcpy(addresses->peers[at].name, name, NAME_BYTES);
	}
	addresses->peers[at].is_there = true;
	pthread_mutex_unlock(&lock);
	*number = at;
	return 1;
}

static int take_out(struct fid_av *av, fi_addr_t *number, size_t count, uint64_t flags)
{
	struct addresses *addresses = (struct addresses *)av;

	(void)count, (void)flags;
	pthread_mutex_lock(&lock);
	if (*number >= addresses->count || !addresses->peers[*number].is_there)
		broken("a peer is removed that is not in the vector");
	check_unused(addresses->peers[*number].users, "a peer");
	addresses->peers[*number].is_there = false;
	pthread_mutex_unlock(&lock);
	return 0;
}

static int open_addresses(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context)
{
	static struct fi_ops ops = {.size = sizeof(ops), .close = close_addresses};
	static struct fi_ops_av av_ops = {.size = sizeof(av_ops), .insert = insert, .remove = take_out};
	struct addresses *addresses = calloc(1, sizeof(*addresses));

	(void)attr, (void)context;
	addresses->domain = (struct domain *)domain;
	addresses->domain->users++;
	addresses->base.fid.ops = &ops;
	addresses->base.ops = &av_ops;
	*av = &addresses->base;
	return 0;
}

/* Endpoints */

static int close_endpoint(struct fid *fid)
{
	struct endpoint *endpoint = (struct endpoint *)fid;

	if (endpoint->is_enabled) {
		pthread_mutex_lock(&lock);
		endpoint->is_stopping = true;
		pthread_mutex_unlock(&lock);
		eventfd_write(endpoint->wake, 1);
		pthread_join(endpoint->thread, NULL);
		pthread_mutex_lock(&lock);
		end_device(endpoint);
		pthread_mutex_unlock(&lock);
	}
	close(endpoint->socket);
	close(endpoint->wake);
	if (endpoint->transmit)
		endpoint->transmit->users--;
	if (endpoint->receive)
		endpoint->receive->users--;
	if (endpoint->addresses)
		endpoint->addresses->users--;
	endpoint->domain->users--;
	free(endpoint);
	return 0;
}

static int bind_endpoint(struct fid *fid, struct fid *other, uint64_t flags)
{
	struct endpoint *endpoint = (struct endpoint *)fid;

	if (flags == 0) {
		endpoint->addresses = (struct addresses *)other;
		endpoint->addresses->users++;
	}
	if (flags & FI_SEND) {
		endpoint->transmit = (struct queue *)other;
		endpoint->transmit->users++;
	}
	if (flags & FI_RECV) {
		endpoint->receive = (struct queue *)other;
		endpoint->receive->users++;
	}
	return flags & ~(FI_SEND | FI_RECV) ? -FI_EINVAL : 0;
}

static int control_endpoint(struct fid *fid, int command, void *arg)
{
	struct endpoint *endpoint = (struct endpoint *)fid;

	(void)arg;
	if (command != FI_ENABLE || !endpoint->transmit || !endpoint->receive || !endpoint->addresses)
		return -FI_EOPBADSTATE;
	endpoint->is_enabled = true;
	return -pthread_create(&endpoint->thread, NULL, run_device, endpoint);
}

static int set_option(fid_t fid, int level, int name, const void *value, size_t bytes)
{
	struct endpoint *endpoint = (struct endpoint *)fid;

	(void)value;
	if (level != FI_OPT_ENDPOINT || (name != OPT_SHARED_MEMORY && name != OPT_CUDA_API))
		return -FI_ENOPROTOOPT;
	return bytes != sizeof(bool) || endpoint->is_enabled ? -FI_EINVAL : 0;
}

static int get_option(fid_t fid, int level, int name, void *value, size_t *bytes)
{
	bool is_size = name == OPT_MAX_RMA_SIZE;
	size_t needed = is_size ? sizeof(size_t) : sizeof(bool);

	(void)fid;
	if (level != FI_OPT_ENDPOINT || (!is_size && name != OPT_EMULATED_WRITE))
		return -FI_ENOPROTOOPT;
	if (*bytes < needed)
		return -FI_ETOOSMALL;
	*bytes = needed;
	if (is_size)
		*(size_t *)value = bytes_max();
	else
		*(bool *)value = number_of("EFA_RULES_EMULATED", 0);
	return 0;
}

static int get_name(fid_t fid, void *name, size_t *bytes)
{
	size_t room = *bytes;

	*bytes = NAME_BYTES;
	if (room < NAME_BYTES)
		return -FI_ETOOSMALL;
	memcpy(name, ((struct endpoint *)fid)->name, NAME_BYTES);
	return 0;
}

static ssize_t post(struct endpoint *endpoint, const struct operation *wanted, const void *bytes, size_t count,
		    void *desc, uint64_t address)
{
	static uint64_t last_id;
	uint64_t size = 64u << chance(9);

	if (count > bytes_max())
		broken("a post of %zu bytes, at most %zu", count, bytes_max());
	struct region *region = local(endpoint->domain, desc, bytes, count, wanted->is_read ? FI_READ : FI_WRITE);
	if (wanted->peer >= endpoint->addresses->count || !endpoint->addresses->peers[wanted->peer].is_there)
		broken("a post to a peer that is not in the vector");
	if (endpoint->operations_count == TX_SIZE || !chance(8))
		return -FI_EAGAIN;
	take_context(wanted->context);
	/* Long ones are not cut very small. */
	while (count / size > 256 && size < PIECE_BYTES_MAX)
		size *= 2;
	struct operation *operation = malloc(sizeof(*operation));
	*operation = *wanted;
	operation->id = ++last_id;
	operation->begin_us = now_us() + (chance(LATE_ONE_IN) ? 0 : chance(LATE_US_MAX));
	operation->local = (char *)bytes;
	operation->region = region;
	operation->pieces = cut(address, count, size);
	operation->next = endpoint->operations;
	endpoint->operations = operation;
	endpoint->operations_count++;
	region->users++;
	endpoint->addresses->peers[wanted->peer].users++;
	eventfd_write(endpoint->wake, 1);
	return 0;
}

static ssize_t any_post(struct fid_ep *ep, const struct operation *wanted, const void *bytes, size_t count,
			void *desc, uint64_t address)
{
	pthread_mutex_lock(&lock);
	ssize_t result = post((struct endpoint *)ep, wanted, bytes, count, desc, address);
	pthread_mutex_unlock(&lock);
	return result;
}

static ssize_t post_write(struct fid_ep *ep, const void *from, size_t bytes, void *desc, fi_addr_t peer,
			  uint64_t address, uint64_t key, void *context)
{
	struct operation wanted = {.peer = peer, .key = key, .context = context};

	return any_post(ep, &wanted, from, bytes, desc, address);
}

static ssize_t post_write_data(struct fid_ep *ep, const void *from, size_t bytes, void *desc, uint64_t data,
			       fi_addr_t peer, uint64_t address, uint64_t key, void *context)
{
	struct operation wanted = {.peer = peer, .key = key, .context = context, .has_data = true, .data = data};

	return any_post(ep, &wanted, from, bytes, desc, address);
}

static ssize_t post_read(struct fid_ep *ep, void *to, size_t bytes, void *desc, fi_addr_t peer, uint64_t address,
			 uint64_t key, void *context)
{
	struct operation wanted = {.peer = peer, .key = key, .context = context, .is_read = true};

	return any_post(ep, &wanted, to, bytes, desc, address);
}

static ssize_t post_receive(struct fid_ep *ep, void *buffer, size_t bytes, void *desc, fi_addr_t peer,
			    void *context)
{
	struct endpoint *endpoint = (struct endpoint *)ep;

	(void)buffer, (void)desc;
	if (bytes || peer != FI_ADDR_UNSPEC)
		return -FI_EINVAL;
	pthread_mutex_lock(&lock);
	if (endpoint->receives_count == RX_SIZE)
		broken("more than %d receives are posted", RX_SIZE);
	bool has_room = chance(8);
	if (has_room) {
		take_context(context);
		endpoint->receives[endpoint->receives_count++] = context;
	}
	pthread_mutex_unlock(&lock);
	return has_room ? 0 : -FI_EAGAIN;
}

static ssize_t cancel(fid_t fid, void *context)
{
	(void)fid, (void)context;
	broken("nothing can be cancelled");
}

static int open_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context)
{
	static struct fi_ops ops = {.size = sizeof(ops), .close = close_endpoint, .bind = bind_endpoint,
				    .control = control_endpoint};
	static struct fi_ops_ep ep_ops = {.size = sizeof(ep_ops), .cancel = cancel, .getopt = get_option,
					  .setopt = set_option};
	static struct fi_ops_cm cm = {.size = sizeof(cm), .getname = get_name};
	static struct fi_ops_msg msg = {.size = sizeof(msg), .recv = post_receive};
	static struct fi_ops_rma rma = {.size = sizeof(rma), .read = post_read, .write = post_write,
					.writedata = post_write_data};
	struct endpoint *endpoint = calloc(1, sizeof(*endpoint));
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char name[NAME_BYTES];
	uint64_t random;

	(void)info, (void)context;
	if (getentropy(&random, sizeof(random)))
		return -FI_EOTHER;
	snprintf(name, sizeof(name), "efa-%08x-%018llx", getpid(), (unsigned long long)random);
	memcpy(endpoint->name + 1, name, NAME_BYTES - 1);
	memcpy(address.sun_path, endpoint->name, NAME_BYTES);
	endpoint->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	endpoint->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (bind(endpoint->socket, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + NAME_BYTES))
		return -FI_EADDRINUSE;
	endpoint->domain = (struct domain *)domain;
	endpoint->domain->users++;
	endpoint->base.fid.ops = &ops;
	endpoint->base.ops = &ep_ops;
	endpoint->base.cm = &cm;
	endpoint->base.msg = &msg;
	endpoint->base.rma = &rma;
	*ep = &endpoint->base;
	return 0;
}

/* Domains and fabrics */

static int close_domain(struct fid *fid)
{
	struct domain *domain = (struct domain *)fid;

	check_unused(domain->users, "a domain");
	domain->fabric->users--;
	free(domain);
	return 0;
}

static int open_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **found, void *context)
{
	static struct fi_ops ops = {.size = sizeof(ops), .close = close_domain};
	static struct fi_ops_domain domain_ops = {.size = sizeof(domain_ops), .av_open = open_addresses,
						  .cq_open = open_queue, .endpoint = open_endpoint};
	static struct fi_ops_mr mr = {.size = sizeof(mr), .regattr = register_region};
	struct domain *domain = calloc(1, sizeof(*domain));

	(void)context;
	domain->fabric = (struct fabric *)fabric;
	domain->fabric->users++;
	domain->takes_receives = info->mode & FI_RX_CQ_DATA;
	domain->base.fid.ops = &ops;
	domain->base.ops = &domain_ops;
	domain->base.mr = &mr;
	*found = &domain->base;
	return 0;
}

static int close_fabric(struct fid *fid)
{
	struct fabric *fabric = (struct fabric *)fid;

	check_unused(fabric->users, "a fabric");
	free(fabric);
	return 0;
}

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **found, void *context)
{
	static struct fi_ops ops = {.size = sizeof(ops), .close = close_fabric};
	static struct fi_ops_fabric fabric_ops = {.size = sizeof(fabric_ops), .domain = open_domain};

	(void)context;
	/* The other one is offered only so that it is not taken by mistake. */
	if (strcmp(attr->name, "efa-direct"))
		return -FI_ENOSYS;
	struct fabric *fabric = calloc(1, sizeof(*fabric));
	fabric->base.fid.ops = &ops;
	fabric->base.ops = &fabric_ops;
	*found = &fabric->base;
	return 0;
}
