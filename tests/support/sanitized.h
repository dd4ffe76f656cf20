/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SANITIZED_H
#define SANITIZED_H

/* SANITIZED: the program is many times slower than an ordinary one. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

#endif
