/* What the library's files share: the objects (fabric.c), what moves bytes (device.c) and what is
 * offered (info.c). */
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdbool.h>
#include <stdint.h>

/* Writes and reads of an endpoint that are under way at most, and its receives. */
#define TX_SIZE 64
#define RX_SIZE 128
/* A name is that of an abstract socket, which begins with a zero. */
#define NAME_BYTES 32
#define PIECE_BYTES_MAX 16384
#define HELD_MAX 64

struct fabric {
	struct fid_fabric base;
	int users;
};

struct domain {
	struct fid_domain base;
	struct fabric *fabric;
	bool takes_receives;
	int users;
	struct region *regions;
};

struct region {
	struct fid_mr base;
	struct region *next;
	struct domain *domain;
	struct iovec piece;
	uint64_t access;
	/* Operations of this process that use it. */
	int users;
};

struct entry {
	struct fi_cq_data_entry data;
	int code;
};

struct queue {
	struct fid_cq base;
	struct domain *domain;
	struct entry *entries;
	size_t size, count;
	struct entry failure;
	bool has_failed;
	int users;
};

struct addresses {
	struct fid_av base;
	struct domain *domain;
	struct {
		char name[NAME_BYTES];
		bool is_there;
		int users;
	} *peers;
	size_t count;
	int users;
};

/* Bytes in pieces that end where the peer's memory has a multiple of 64, in any order. */
struct pieces {
	uint64_t address, bytes, size;
	uint64_t count, first, stride, next;
};

/* A write or read of this process. */
struct operation {
	struct operation *next;
	bool is_read, has_data, is_lost;
	uint64_t id, key;
	uint32_t data;
	void *context;
	char *local;
	struct region *region;
	fi_addr_t peer;
	struct pieces pieces;
	/* Of a read. */
	uint64_t arrived;
	/* When it is looked after the peer again, or the operation fails because that is gone. */
	uint64_t look_us;
	/* Some begin late, when many later ones are done. */
	uint64_t begin_us;
};

/* A peer's write that comes, or a peer's read that is answered. */
struct arrival {
	struct arrival *next;
	bool is_read, has_data, is_answered;
	char from[NAME_BYTES];
	uint64_t id, key;
	uint32_t data;
	int code;
	struct pieces pieces;
	uint64_t came, placed;
};

/* What one datagram says; bytes may follow. */
enum kind { PIECE, ANSWER, READ, BACK, LOOK };
struct head {
	uint32_t kind, data;
	uint64_t id, address, bytes, key, size, offset;
	uint32_t has_data;
	int32_t code;
};

struct held {
	struct arrival *arrival;
	uint64_t offset, bytes;
	char payload[PIECE_BYTES_MAX];
};

struct answer {
	struct answer *next;
	char to[NAME_BYTES];
	struct head head;
};

struct endpoint {
	struct fid_ep base;
	struct domain *domain;
	struct queue *transmit, *receive;
	struct addresses *addresses;
	void *receives[RX_SIZE];
	size_t receives_count;
	int socket, wake;
	char name[NAME_BYTES];
	bool is_enabled, is_stopping;
	pthread_t thread;
	struct operation *operations;
	int operations_count;
	struct arrival *arrivals;
	struct answer *answers;
	struct held *held[HELD_MAX];
	size_t held_count;
};

/* Held while objects are looked at or changed. */
extern pthread_mutex_t lock;

__attribute__((noreturn, format(printf, 1, 2))) void broken(const char *rule, ...);
uint64_t chance(uint64_t below);
uint64_t now_us(void);
uint64_t number_of(const char *variable, uint64_t otherwise);
/* Of the longest write or read. */
size_t bytes_max(void);
/* Marks a context as the library's, and gives it back. */
void take_context(void *context);
void give_context_back(void *context);
void complete(struct queue *queue, void *context, uint64_t flags, uint64_t bytes, uint64_t data, int code);
struct pieces cut(uint64_t address, uint64_t bytes, uint64_t size);
void *run_device(void *endpoint);
/* Tells peers what they still wait for, and forgets all that is under way. */
void end_device(struct endpoint *endpoint);
